"""Rendering of a chat template: sandboxed, within a time limit, cached by the shape of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from grpo.errors import PolicyError
from grpo.messages import Tool
from grpo.renderers.placeholders import DATE_MACRO, MessageShape, escape, slots_in, template_messages
from grpo.renderers.time_limit import time_limit

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RENDER_S = 5.0
"""Time limit of rendering a conversation, in seconds. The published templates take up to 0.13 s for a short one, which
is mostly compilation. A garbage collection during the rendering may take a second and more in a large process."""
RENDER_MESSAGE_S = 0.01
"""Further seconds per message. The published templates take up to 0.002."""
_CACHED = 4096
_SHOWN = 16  # messages whose roles an error names


class TemplateFailure(PolicyError):
    """Raised if a template fails on a conversation, or leaves out a part of it."""


class TemplateTimeout(PolicyError):
    """Raised if a template exceeds the time limit. It is not a `TemplateFailure`, because those are caught to try other
    renderings, and each would take as long."""


class ChatTemplate:
    """A chat template with a tokenizer's special tokens and a set of tools."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, source: str, tools: Sequence[Tool] = ()) -> None:
        self.tokenizer = tokenizer
        self.source = source
        self._given = tuple(tools)
        self._tools = [tool.to_template() for tool in tools] or None
        self.render = lru_cache(maxsize=_CACHED)(self._render)

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

    def _render(self, shapes: tuple[MessageShape, ...], generate: bool) -> str:
        """Text of a conversation with slots, up to the start of an assistant turn if `generate`."""
        return self.render_messages(template_messages(shapes), generate)

    def render_messages(self, messages: Sequence[dict[str, Any]], generate: bool) -> str:
        """Like `render`, but from messages in the format of chat templates."""
        render = self.tokenizer.apply_chat_template
        try:
            with time_limit(RENDER_S + RENDER_MESSAGE_S * len(messages)):
                return str(
                    render(
                        list(messages),
                        tools=self._tools,
                        chat_template=(DATE_MACRO if "strftime_now" in self.source else "") + self.source,
                        tokenize=False,
                        add_generation_prompt=generate,
                    )
                )
        except Exception as error:
            roles = ", ".join(message["role"] for message in messages[-_SHOWN:])
            roles += f", after {len(messages) - _SHOWN} others" if len(messages) > _SHOWN else ""
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            refusal = TemplateTimeout if isinstance(error, TimeoutError) else TemplateFailure
            raise refusal(self._refusal(f"fails on messages of {roles}: {reason}")) from error
