"""Messages ↔ token ids through a chat template; sampled tokens are never tokenized again.

    build_prompt(S U)                →  P     prompt up to the start of the assistant turn
    policy samples                   →  A1    kept as sampled, stop token included
    build_continuation(S U A1, T)    →  E     template text between A1 and the start of the next assistant turn

`P A1 E A2 …` is the trajectory. Message contents are encoded with special tokens disabled: "<|end|>" typed by a user
becomes ordinary characters, not a control token.
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
"""Time limit of rendering, in seconds."""
_REQUIRED_SHAPES = ((("user", False),), (("user", False), ("assistant", False), ("user", False)))
"""Conversations that every template must render, checked when a renderer is created."""


class Renderer:
    """Renderer of conversations for one tokenizer, chat template and set of tools.

    Raises `PolicyError` for an empty tokenizer (transformers silently creates one if the files are missing), and for
    a chat template that is missing, fails, does not terminate, or rewrites earlier turns.
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
        self._template_encoder, self._content_encoder = _encoders(tokenizer)
        self.hash = renderer_hash(tokenizer)
        self._shape = lru_cache(maxsize=4096)(self._render_shape)
        self._encode_template = lru_cache(maxsize=4096)(self._encode_rendered)
        for shape in _REQUIRED_SHAPES:
            if not _SLOT.search(self._shape(shape, True)):
                raise self._unusable("prints no message")

    def build_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a prompt that ends at the start of the assistant turn."""
        return self._fill(self._shape(_shape_of(messages), True), messages)

    def build_continuation(self, messages: Sequence[Message], new: Sequence[Message]) -> list[int]:
        """Token ids between the sampled assistant turn, the last of `messages`, and the next one, after `new`."""
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
        """Token ids of an assistant turn as the policy would generate it, stop token included."""
        calls = "".join(f"{TOOL_CALL_OPEN}{call}{TOOL_CALL_CLOSE}" for call in message.tool_calls)
        return [*self._encode_rendered(message.content + calls), self.stop_id]

    def tokenize_conversation(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """Token ids and loss mask of a complete conversation, rendered turn by turn as in a rollout."""
        first = next(i for i, message in enumerate(messages) if message.role == "assistant")
        ids = self.build_prompt(messages[:first])
        mask = [False] * len(ids)
        position = first
        while position < len(messages):
            reply = self.encode_reply(messages[position])
            ids, mask = ids + reply, mask + [True] * len(reply)
            following = position + 1
            while following < len(messages) and messages[following].role != "assistant":
                following += 1
            if following < len(messages):
                bridge = self.build_continuation(messages[: position + 1], messages[position + 1 : following])
                ids, mask = ids + bridge, mask + [False] * len(bridge)
            position = following
        return ids, mask

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode sampled token ids without the stop token; an incomplete character at the end is U+FFFD."""
        ids = list(token_ids)
        if ids and ids[-1] == self.stop_id:
            ids.pop()
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def parse_reply(self, token_ids: Sequence[int]) -> Message:
        """Decode sampled token ids and parse them into a message."""
        return parse_assistant(self.decode(token_ids))

    def _render_shape(self, shape: tuple[tuple[str, bool], ...], generate: bool) -> str:
        """Render a conversation of this shape with a numbered slot in place of each content."""
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
            f"chat template of {self.tokenizer.name_or_path!r} {fault}; fix chat_template.jinja in the model folder, "
            "or set policy.chat_template"
        )

    def _fill(self, rendered: str, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for index, piece in enumerate(_SLOT.split(rendered)):
            if index % 2:
                ids += self._encode_content(messages[int(piece)].content)
            elif piece:
                ids += self._encode_template(piece)
        return ids

    def _encode_rendered(self, text: str) -> list[int]:
        return list(self._template_encoder.encode(text, add_special_tokens=False).ids)

    def _encode_content(self, text: str) -> list[int]:
        return list(self._content_encoder.encode(text, add_special_tokens=False).ids)


def renderer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest of vocabulary and chat template, 16 hex digits."""
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(f"{vocabulary}\0{tokenizer.chat_template}".encode()).hexdigest()[:16]


def _encoders(tokenizer: PreTrainedTokenizerBase) -> tuple[Tokenizer, Tokenizer]:
    """Two encoders, with control tokens parsed and with control tokens as ordinary text.

    transformers toggles a flag of the tokenizer's single backend, which is not thread-safe.
    """
    from tokenizers import Tokenizer

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise PolicyError(f"tokenizer of {tokenizer.name_or_path!r} is not a fast tokenizer; add tokenizer.json")
    trusted, foreign = (Tokenizer.from_str(backend.to_str()) for _ in range(2))
    for encoder in (trusted, foreign):
        encoder.no_truncation()
        encoder.no_padding()
    trusted.encode_special_tokens = False
    foreign.encode_special_tokens = True
    return trusted, foreign


def _shape_of(messages: Sequence[Message]) -> tuple[tuple[str, bool], ...]:
    return tuple((message.role, bool(message.tool_calls)) for message in messages)
