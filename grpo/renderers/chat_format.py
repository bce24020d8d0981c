"""Description of how a chat template renders tools, calls, later system messages and conversations without a user.

A template's own form is called native. A part that it lacks gets a generic form, see
`grpo.renderers.template_patches`. The form decides how well a model calls tools, so the log of load_base, the report
and `grpo doctor` state it.
"""

from __future__ import annotations

from dataclasses import dataclass

from grpo.renderers.python_calls import PythonCalls
from grpo.renderers.reply_format import ReplyFormat
from grpo.renderers.template_patches import Form
from grpo.renderers.tool_formats import JsonCalls, NamedCalls, TaggedCalls
from grpo.renderers.unquoted_calls import UnquotedCalls

_NAMES: dict[type, str] = {
    JsonCalls: "JSON",
    NamedCalls: "a name and JSON",
    TaggedCalls: "an element for each argument",
    PythonCalls: "Python",
    UnquotedCalls: "keys without quotes",
}
_BLOCK = "tools in a block of the system message"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """Forms in which a conversation is rendered."""

    form: str
    """Form of the template's own calls in words."""
    added: tuple[Form, ...]
    """Parts that the template leaves out. They are rendered in the generic form."""
    one_call: bool
    """The template renders only one call per turn."""
    later_system: bool
    """A system message after the first turns is read in its place."""
    without_user: bool
    """A conversation without a user message is read."""

    @property
    def calls(self) -> str:
        """Words for how tools and calls are rendered."""
        if "calls" in self.added:
            return f"{_BLOCK}, calls in the generic form (<tool_call> and JSON)"
        own = f"the template's own form ({self.form})"
        return f"{_BLOCK}, calls in {own}" if "tools" in self.added else f"tools and calls in {own}"

    @property
    def is_native(self) -> bool:
        """True if the template itself renders every part of a conversation, and several calls per turn."""
        return not self.added and not self.one_call

    def __str__(self) -> str:
        """One line for logs and pages."""
        others = [form for form in self.added if form not in ("tools", "calls")]
        return "; ".join(
            [
                self.calls + (", one call a turn" if self.one_call else ""),
                *([f"generic as well: {', '.join(others)}"] if others else []),
                f"a later system message is {'read in its place' if self.later_system else 'refused'}",
                f"a conversation without a user is {'read' if self.without_user else 'refused'}",
            ]
        )


def form_of(replies: ReplyFormat) -> str:
    """Form of the calls in a template's replies."""
    if replies.channels:
        return "channels"
    return "none" if replies.calls is None else _NAMES[type(replies.calls)]
