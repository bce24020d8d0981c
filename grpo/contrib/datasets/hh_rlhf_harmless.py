"""HH-RLHF, harmlessness: two dialogues that differ in the last reply. Annotators chose the less harmful one.

    "\\n\\nHuman: …\\n\\nAssistant: …"

If a dialogue has two assistant turns in a row, they stay two. A pair is quarantined if a last reply is empty, or if the
dialogues differ before it. The texts are offensive.

https://github.com/anthropics/hh-rlhf, MIT
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from grpo.contrib.datasets.parts import find_parts
from grpo.errors import DataError
from grpo.messages import Message, Role
from grpo.scenarios.readers.files.json_file import read_jsonl
from grpo.scenarios.records import SourceRecord, convert_records

_PARTS = {name: (f"{name}.jsonl.gz", f"harmless-base/{name}.jsonl.gz") for name in ("train", "test")}
_SPEAKER = re.compile(r"\n\n(Human|Assistant): ?")
_ROLES: dict[str, Role] = {"Human": "user", "Assistant": "assistant"}


class _Pair(BaseModel):
    chosen: str
    rejected: str


def read_hh_rlhf_harmless_pairs(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the parts (default every `*.jsonl` and `*.jsonl.gz` of the folder), one record per pair.

    Raises `DataError` if the folder has no such files, or if a file is damaged.
    """
    every = sorted((*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")))
    paths = [part.path for part in find_parts(folder, parts, _PARTS)] if parts else every
    if not paths:
        raise DataError(f"no *.jsonl or *.jsonl.gz in {folder}. Fetch the published files again")
    for number, path in enumerate(paths):
        yield from convert_records(read_jsonl(path), _Pair, partial(_pair, number))


def _pair(file: int, pair: _Pair, line: int) -> dict[str, Any]:
    chosen, rejected = _messages(pair.chosen), _messages(pair.rejected)
    if chosen[:-1] != rejected[:-1]:
        raise ValueError("dialogues differ before the last reply")
    prompt = "\n".join(message.content for message in chosen[:-1])
    return {
        "id": f"hh-harmless-{file}-{line}",
        "group": f"hh-{hashlib.sha256(prompt.encode()).hexdigest()[:16]}",
        "prompt": chosen[:-1],
        "chosen": chosen[-1],
        "rejected": rejected[-1],
        "category": "harmlessness",
        "source": "hh-rlhf",
        "licence": "MIT",
    }


def _messages(text: str) -> list[Message]:
    before, *rest = _SPEAKER.split(text)
    if before.strip() or not rest:
        raise ValueError("no speaker: the dialogue must start with Human or Assistant")
    messages = [
        Message(role=_ROLES[speaker], content=text.strip()) for speaker, text in zip(rest[::2], rest[1::2], strict=True)
    ]
    if messages[-1].role != "assistant":
        raise ValueError("no reply: the dialogue ends with Human")
    return messages
