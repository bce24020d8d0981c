"""Texts that hold a whole chat, as a chat template or a data set of one column writes it.

<|im_start|>user\\nWhere is order 7?<|im_end|>\\n<|im_start|>assistant\\nIt is lost.<|im_end|>
\\n\\nHuman: Where is order 7?\\n\\nAssistant: It is lost.

As the user's text it would be a scenario in which the user also says what the agent replied. It is refused, because
its forms are too many to be read with certainty.
"""

from __future__ import annotations

import re

_MARKS = (
    ("<|im_start|>user", "<|im_start|>assistant"),
    ("<|start_header_id|>user", "<|start_header_id|>assistant"),
    ("<start_of_turn>user", "<start_of_turn>model"),
    ("<|user|>", "<|assistant|>"),
    ("[INST]", "[/INST]"),
    ("### Instruction:", "### Response:"),
)
"""Marks of a user's and of an agent's turn in the templates of models."""
_NAMES = re.compile(
    r"\s*+(?>(?:system:.*?\n)?(?P<user>(?:###\s*)?(?:human|user|customer|client))\s*:)"
    r".*?(?P<agent>(?:###\s*|\n[^\S\n]*)(?:assistant|agent|bot|chatbot|ai|gpt))\s*:",
    re.IGNORECASE | re.DOTALL,
)
"""Names of the user at the beginning of a text and of the agent at the beginning of a later line."""


def refuse_transcript(text: str, place: str) -> None:
    """Raise `ValueError` with the marks of the turns if the text at a place is a whole chat."""
    marks = next(((user, agent) for user, agent in _MARKS if agent in text.partition(user)[2]), None)
    if marks is None and (match := _NAMES.match(text)) is not None:
        marks = (match["user"].strip(), match["agent"].strip())
    if marks is not None:
        raise ValueError(
            f"a whole chat in one text: in {place}, {marks[0]} and {marks[1]} begin turns of the user and the agent. "
            "Write its turns as a list of messages with roles"
        )
