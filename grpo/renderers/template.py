"""Rendering of a chat template: sandboxed, within a time limit, cached by the shape of a conversation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from grpo.errors import PolicyError
from grpo.messages import Tool
from grpo.renderers.placeholders import (
    DATE_MACRO,
    MessageShape,
    escape,
    slots_in,
    template_messages,
    with_stand_ins,
)
from grpo.renderers.sandbox import render
from grpo.renderers.time_limit import time_limit
from grpo.user_failures import on_one_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RENDER_S = 5.0
"""Time limit of rendering a conversation, in seconds. The published templates take up to 0.13 s for a short one, which
is mostly compilation. A garbage collection during the rendering may take a second and more in a large process."""
RENDER_MESSAGE_S = 0.01
"""Further seconds per message. The published templates take up to 0.002."""
_CACHED, _CACHED_CHARACTERS = 4096, 2**24
"""Renderings that are kept for a template, and their characters together."""
_TEMPLATES = 16
_SHOWN = 16  # messages whose roles an error names
_LONGEST_REASON = 500


class TemplateFailure(PolicyError):
    """Raised if a template fails on a conversation, or leaves out a part of it."""


class TemplateTimeout(PolicyError):
    """Raised if a template exceeds the time limit. It is not a `TemplateFailure`, because those are caught to try other
    renderings, and each would take as long."""


class ChatTemplate:
    """A chat template with a tokenizer's special tokens and a set of tools.

    Templates that are equal in these share their renderings, because a run makes a renderer in each of its stages.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, source: str, tools: Sequence[Tool] = ()) -> None:
        self.tokenizer = tokenizer
        self.source = source
        self._given = tuple(tools)
        self._tools = [with_stand_ins(tool.to_template()) for tool in tools] or None
        self._key = type(tokenizer), source, str(sorted(tokenizer.special_tokens_map.items())), str(self._tools)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChatTemplate) and self._key == other._key

    @cached_property
    def _cached(self) -> _Renderings:
        return _renderings(self)

    def with_source(self, source: str) -> ChatTemplate:
        """Template with another source for the same tokenizer and tools."""
        return ChatTemplate(self.tokenizer, source, self._given)

    def with_tools(self, tools: Sequence[Tool]) -> ChatTemplate:
        """The same template with tools."""
        return ChatTemplate(self.tokenizer, self.source, tools)

    def renders(self, *shapes: MessageShape, keys: Sequence[str]) -> bool:
        """Check that the template prints these slots of a conversation."""
        try:
            rendered = self.render(shapes, False)
        except TemplateFailure:
            return False
        return set(keys) <= {slot.key for slot in slots_in(rendered)}

    def keeps(self, text: str, *shapes: MessageShape) -> bool:
        """Check that the last message's content is printed unchanged, or escaped in the same way as its slot."""
        key = f"{len(shapes) - 1}c"
        slot = next(slot for slot in slots_in(self.render(shapes, True)) if slot.key == key)
        messages = template_messages(shapes)
        messages[-1]["content"] = text
        return escape(text, slot) in self.render_messages(messages, True)

    def failure(self, fault: str) -> TemplateFailure:
        """Error that names the model, the fault and the remedy."""
        return TemplateFailure(self._refusal(fault))

    def _refusal(self, fault: str) -> str:
        return (
            f"chat template of {self.tokenizer.name_or_path!r} {fault}. Fix chat_template.jinja in the model folder, "
            "or set policy.chat_template"
        )

    def render(self, shapes: tuple[MessageShape, ...], generate: bool) -> str:
        """Text of a conversation with slots, up to the start of an assistant turn if `generate`."""
        with self._failures([shape.role for shape in shapes]):
            return self._cached(shapes, generate)

    def render_messages(self, messages: Sequence[dict[str, Any]], generate: bool) -> str:
        """Like `render`, but from messages in the format of chat templates."""
        with self._failures([message["role"] for message in messages]):
            return self._render(messages, generate)

    def _render(self, messages: Sequence[dict[str, Any]], generate: bool) -> str:
        with time_limit(RENDER_S + RENDER_MESSAGE_S * len(messages)):
            return render(
                (DATE_MACRO if "strftime_now" in self.source else "") + self.source,
                messages,
                tools=self._tools,
                generate=generate,
                tokens=self.tokenizer.special_tokens_map,
            )

    @contextmanager
    def _failures(self, roles: Sequence[str]) -> Iterator[None]:
        """Raise errors of a rendering as `TemplateFailure` and `TemplateTimeout`."""
        try:
            yield
        except Exception as error:
            shown = ", ".join(roles[-_SHOWN:])
            shown += f", after {len(roles) - _SHOWN} others" if len(roles) > _SHOWN else ""
            reason = on_one_line(f"{type(error).__name__}: {error}", longest=_LONGEST_REASON)
            refusal = TemplateTimeout if isinstance(error, TimeoutError) else TemplateFailure
            raise refusal(self._refusal(f"fails on messages of {shown}: {reason}")) from error


class _Renderings:
    """Cache of a template's renderings by the shapes of a conversation. The least recently used goes first."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._texts: OrderedDict[tuple[tuple[MessageShape, ...], bool], str] = OrderedDict()
        self._characters = 0
        self._lock = Lock()

    def __call__(self, shapes: tuple[MessageShape, ...], generate: bool) -> str:
        """Text of a conversation."""
        key = shapes, generate
        with self._lock:
            if (text := self._texts.get(key)) is not None:
                self._texts.move_to_end(key)
                return text
        text = self._template._render(template_messages(shapes), generate)
        with self._lock:
            if key not in self._texts:
                self._texts[key] = text
                self._characters += len(text)
            while len(self._texts) > _CACHED or self._characters > _CACHED_CHARACTERS:
                self._characters -= len(self._texts.popitem(last=False)[1])
        return text


@lru_cache(maxsize=_TEMPLATES)
def _renderings(template: ChatTemplate) -> _Renderings:
    """Cached renderings of a template, and of all that are equal to it."""
    return _Renderings(template)
