"""Messages ↔ token ids through a chat template, so that what was sampled is never tokenized again.

    start(S U)            →  P        prompt up to the place where the agent speaks
    policy samples        →  A1       kept as sampled, stop token included
    extend(S U A1, T)     →  E        what the template puts between A1 and the next place to speak

`P A1 E A2 …` is the trajectory. Texts of users and tools are encoded with special tokens disabled: a customer
who types "<|end|>" stays a customer who types odd characters.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from grpo.errors import PolicyError
from grpo.messages import TOOL_CALL_CLOSE, TOOL_CALL_OPEN, Message, Tool, parse_assistant
from grpo.renderers.time_limit import time_limit

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

_SLOT = re.compile("\ue000(\\d+)\ue001")
MIN_VOCABULARY = 32
_RENDER_S = 5.0
"""Seconds after which a template is taken for one that does not end."""
_TRIED = ((("user", False),), (("user", False), ("assistant", False), ("user", False)))
"""Conversations that every template must render, tried when a renderer is made."""


class Renderer:
    """Renders conversations for one tokenizer, chat template and set of tools.

    Raises `PolicyError` for an empty tokenizer (transformers makes one without complaint when it finds no files),
    and for a chat template that is missing, fails, does not end, or rewrites what it rendered before.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, tools: Sequence[Tool] = ()) -> None:
        if len(tokenizer) < MIN_VOCABULARY:
            raise PolicyError(
                f"tokenizer of {tokenizer.name_or_path!r} has {len(tokenizer)} tokens; "
                "its files are missing: give a folder with tokenizer.json"
            )
        if not tokenizer.chat_template:
            raise PolicyError(
                f"tokenizer of {tokenizer.name_or_path!r} has no chat template; "
                "add chat_template.jinja to the model folder or set policy.chat_template"
            )
        if tokenizer.eos_token_id is None:
            raise PolicyError(f"tokenizer of {tokenizer.name_or_path!r} has no eos token to end a turn with")
        self.tokenizer = tokenizer
        self.tools = tuple(tools)
        self.stop_id = int(tokenizer.eos_token_id)
        self._stop = str(tokenizer.eos_token)
        self._trusted, self._foreign = _encoders(tokenizer)
        self.hash = renderer_hash(tokenizer)
        self._shape = lru_cache(maxsize=4096)(self._render_shape)
        self._encode_template = lru_cache(maxsize=4096)(self._encode_trusted)
        for shape in _TRIED:
            if not _SLOT.search(self._shape(shape, True)):
                raise self._unusable("prints no message")

    def build_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the prompt that ends where the agent speaks."""
        return self._fill(self._shape(_shape_of(messages), True), messages)

    def build_continuation(self, messages: Sequence[Message], new: Sequence[Message]) -> list[int]:
        """Token ids between the agent's sampled turn, the last of `messages`, and its next one, after `new`."""
        shape = _shape_of(messages)
        before = self._shape(shape, False)
        after = self._shape((*shape, *_shape_of(new)), True)
        if not after.startswith(before):
            raise PolicyError(
                f"chat template of {self.tokenizer.name_or_path!r} rewrites earlier turns when a "
                f"{new[0].role} message follows; sampled tokens cannot be kept: use a prefix-preserving template"
            )
        tail = before.rsplit(self._stop, 1)[1] if self._stop in before else ""
        return self._fill(tail + after[len(before) :], (*messages, *new))

    def encode_reply(self, message: Message) -> list[int]:
        """Token ids of an assistant turn as the policy would sample it, stop token included."""
        calls = "".join(f"{TOOL_CALL_OPEN}{call}{TOOL_CALL_CLOSE}" for call in message.tool_calls)
        return [*self._encode_trusted(message.content + calls), self.stop_id]

    def tokenize_conversation(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """Token ids and loss mask of a whole written conversation, rendered turn by turn as a rollout would."""
        first = next(i for i, message in enumerate(messages) if message.role == "assistant")
        ids = self.build_prompt(messages[:first])
        mask = [False] * len(ids)
        position = first
        while position < len(messages):
            said = self.encode_reply(messages[position])
            ids, mask = ids + said, mask + [True] * len(said)
            following = position + 1
            while following < len(messages) and messages[following].role != "assistant":
                following += 1
            if following < len(messages):
                bridge = self.build_continuation(messages[: position + 1], messages[position + 1 : following])
                ids, mask = ids + bridge, mask + [False] * len(bridge)
            position = following
        return ids, mask

    def decode(self, token_ids: Sequence[int]) -> str:
        """What sampled token ids say, without the stop token; an unfinished character at the end is U+FFFD."""
        ids = list(token_ids)
        if ids and ids[-1] == self.stop_id:
            ids.pop()
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def parse_reply(self, token_ids: Sequence[int]) -> Message:
        """The message that sampled token ids say."""
        return parse_assistant(self.decode(token_ids))

    def _render_shape(self, shape: tuple[tuple[str, bool], ...], generate: bool) -> str:
        """Render a conversation of this shape with a numbered slot in the place of each text."""
        messages: list[dict[str, Any]] = []
        for index, (role, calls) in enumerate(shape):
            message: dict[str, Any] = {"role": role, "content": f"\ue000{index}\ue001"}
            if calls:
                message["tool_calls"] = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
            messages.append(message)
        tools = [tool.to_template() for tool in self.tools] or None
        render = self.tokenizer.apply_chat_template
        try:
            with time_limit(_RENDER_S):
                return str(render(messages, tools=tools, tokenize=False, add_generation_prompt=generate))
        except Exception as error:
            roles = ", ".join(role for role, _ in shape)
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise self._unusable(f"fails on messages of {roles}: {reason}") from error

    def _unusable(self, fault: str) -> PolicyError:
        return PolicyError(
            f"chat template of {self.tokenizer.name_or_path!r} {fault}; mend chat_template.jinja in the model folder, "
            "or set policy.chat_template"
        )

    def _fill(self, rendered: str, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for index, piece in enumerate(_SLOT.split(rendered)):
            if index % 2:
                ids += self._encode_foreign(messages[int(piece)].content)
            elif piece:
                ids += self._encode_template(piece)
        return ids

    def _encode_trusted(self, text: str) -> list[int]:
        return list(self._trusted.encode(text, add_special_tokens=False).ids)

    def _encode_foreign(self, text: str) -> list[int]:
        return list(self._foreign.encode(text, add_special_tokens=False).ids)


def renderer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest of vocabulary and chat template, first 16 hex digits: with another one the same ids are other words."""
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(f"{vocabulary}\0{tokenizer.chat_template}".encode()).hexdigest()[:16]


def _encoders(tokenizer: PreTrainedTokenizerBase) -> tuple[Tokenizer, Tokenizer]:
    """Two encoders of the renderer's own: one that reads control tokens, one to which they are ordinary text.

    transformers switches the one that a tokenizer has back and forth, which two threads must not do at once.
    """
    from tokenizers import Tokenizer

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise PolicyError(f"tokenizer of {tokenizer.name_or_path!r} is no fast tokenizer; add tokenizer.json")
    trusted, foreign = (Tokenizer.from_str(backend.to_str()) for _ in range(2))
    for encoder in (trusted, foreign):
        encoder.no_truncation()
        encoder.no_padding()
    trusted.encode_special_tokens = False
    foreign.encode_special_tokens = True
    return trusted, foreign


def _shape_of(messages: Sequence[Message]) -> tuple[tuple[str, bool], ...]:
    return tuple((message.role, bool(message.tool_calls)) for message in messages)
