"""Ends of assistant turns, and the prefix property of a template.

    rendered  <|user|>⸨0c⸩<|end|> <|assistant|>⸨1c⸩<|end|> <|user|>⸨2c⸩<|end|>
                                               tail ────────────────────────→

A template is prefix-preserving if joining three texts gives what it renders for the whole conversation: the prompt of a
turn, the turn as rendered when it was the last one, and all that follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from grpo.messages import END_OF_THINK, THINK, Message
from grpo.renderers.placeholders import CallShape, MessageShape, common_prefix, fill, shape_of, slots_in, texts_of
from grpo.renderers.template import ChatTemplate, TemplateFailure

SYSTEM, USER, REPLY, RESULT = (MessageShape(role=role) for role in ("system", "user", "assistant", "tool"))
CALL = MessageShape(role="assistant", filled=False, calls=(CallShape('{"value": "\\u00000"}'),))
_CONTEXT = 24
_UNCLOSED = re.compile(r"[<\[][^<>\[\]\s]*$")
"""Incomplete mark in brackets at the end of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    """Control token that ends an assistant turn. It is `borrowed` if it is the first token of the next message."""

    text: str | None
    borrowed: bool = False


def end_of_turn(
    template: ChatTemplate,
    turn: MessageShape,
    reply: MessageShape,
    *,
    controls: re.Pattern[str],
    declared: frozenset[str],
    borrowing: bool | None = None,
) -> TurnEnd:
    """Control token after a turn that `reply` follows: one in `declared`, or else the last before the next message.

    ⸨1c⸩<|end|>\\n | <|user|>      → <|end|>
    ⸨1c⸩           | <|user|>     → <|user|>, borrowed: GLM's models write it themselves
    ⸨1c⸩<|return|> | <|end|>      → <|return|>: the template ends the last turn in another way
    """
    before = tail(template.render((USER, turn), False), 1)
    after = tail(template.render((USER, turn, reply), True), 1)
    shared = controls.findall(common_prefix(before, after))
    if borrowing:
        shared = [text for text in shared if text in declared]
    if shared:
        return TurnEnd(text=next((text for text in shared if text in declared), shared[-1]))
    own = controls.findall(before)
    if own and not borrowing:
        return TurnEnd(text=next((text for text in own if text in declared), own[0]))
    rest = after[len(common_prefix(before, after)) :].lstrip()
    first = controls.match(rest)
    return TurnEnd(text=first[0] if first else None, borrowed=first is not None)


def tail(rendered: str, message: int) -> str:
    """Text after the last slot of a message.

    Of each slot the first occurrence counts, because a result may repeat the name of its call. Raises `ValueError` if
    the message has no slot.
    """
    stops: dict[str, int] = {}
    for slot in slots_in(rendered):
        if slot.message == message:
            stops.setdefault(slot.key, slot.stop)
    return rendered[max(stops.values()) :]


def cut_turn(rendered: str, message: int, end: TurnEnd) -> int:
    """Position where the tokens of the last turn end in a rendered conversation, without its end token."""
    rest = tail(rendered, message)
    start = len(rendered) - len(rest)
    if end.text is not None and not end.borrowed and end.text in rest:
        return start + rest.index(end.text)
    return len(rendered.rstrip()) if rest.strip() else start


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Ends of turns without and with tool calls."""

    reply: TurnEnd
    call: TurnEnd

    def of(self, shape: MessageShape) -> TurnEnd:
        """End of a turn."""
        return self.call if shape.calls else self.reply


def turn_text(
    template: ChatTemplate, ends: Ends, turns: Sequence[MessageShape], marks: tuple[str, str] = (THINK, END_OF_THINK)
) -> str | None:
    """Text of the last of `turns`, an assistant's, as the policy would generate it, without its end.

    `marks` stand before and after reasoning, which the prompt may open.

    If the template does not render the earlier turns like in the prompt, the result is None. But after a single message
    it is the turn's own text instead. If the prompt has opened reasoning, the reasoning is ended before that text.
    """
    *earlier, turn = turns
    prompt = template.render(tuple(earlier), True)
    whole = template.render((*earlier, turn), False)
    end = cut_turn(whole, len(earlier), ends.of(turn))
    if whole.startswith(prompt):
        return whole[len(prompt) : end]
    opening, closing = marks
    begun = prompt.rstrip().endswith(opening)
    if turn.reasoning and not begun:  # the prompt has closed it
        return turn_text(template, ends, (*earlier, replace(turn, reasoning=False)), marks)
    if len(earlier) > 1:
        return None
    text = whole[_start_of_turn(prompt.rstrip().removesuffix(opening) if begun else prompt, whole, len(earlier)) : end]
    if not begun:
        return text
    text = text.rpartition(closing)[2].lstrip()
    reasoning = f"⸨{len(earlier)}r\"'⸩" if turn.reasoning else ""
    before, after = ("\n", "\n\n") if closing == END_OF_THINK else ("", "")
    return f"{reasoning}{before}{closing}{after}{text}"


def _start_of_turn(prompt: str, whole: str, message: int) -> int:
    """Position where a turn begins in a conversation that does not begin with the rendered prompt.

    It is after the text of the last message and the part after it that prompt and conversation share, up to the first
    mark that differs. White space may differ:

    prompt   ⸨0c⸩<|end|><|bot|><|START_THINKING|>
    whole    ⸨0c⸩<|end|><|bot|><|START_TEXT|>⸨1c⸩        begins at <|START_TEXT|>
    """
    position, start = (
        max((slot.stop for slot in slots_in(text) if slot.message < message), default=0) for text in (prompt, whole)
    )
    begin = start
    while position < len(prompt) and start < len(whole):
        if prompt[position] == whole[start]:
            position, start = position + 1, start + 1
        elif prompt[position].isspace():
            position += 1
        elif whole[start].isspace():
            start += 1
        else:
            break
    return begin + len(_UNCLOSED.sub("", whole[begin:start]))


def reply_shape(message: Message) -> MessageShape:
    """Shape of an assistant turn. An empty turn gets a slot, because templates leave out a turn without a text."""
    shape = shape_of(message)
    return shape if shape.filled or shape.calls else replace(shape, filled=True)


def reply_renderer(
    template: ChatTemplate, ends: Ends, marks: tuple[str, str] = (THINK, END_OF_THINK)
) -> Callable[[Message], str | None]:
    """Function from a message to its `turn_text` after a user message. It returns None if the template fails."""
    user = Message(role="user", content="x")

    def render(message: Message) -> str | None:
        try:
            text = turn_text(template, ends, (USER, reply_shape(message)), marks)
        except (TemplateFailure, ValueError):
            return None
        return None if text is None else "".join(piece for piece, _ in fill(text, texts_of((user, message))))

    return render


def prefix_fault(template: ChatTemplate, ends: Ends, *, tools: bool, reasoning: Sequence[bool]) -> str | None:
    """First way in which a template rewrites what was read or generated, or None if it is prefix-preserving.

    Conversations are checked for each value in `reasoning`: True with reasoning in replies, False without.
    """
    for reasoned in reasoning:
        for conversation in sample_conversations(tools=tools, reasoning=reasoned):
            fault = _fault_in(template, ends, conversation)
            if fault is not None:
                return fault
    return None


def sample_conversations(*, tools: bool, reasoning: bool) -> list[tuple[MessageShape, ...]]:
    """Conversations of several turns that templates are checked with."""
    reply, call = REPLY, CALL
    if reasoning:
        reply = MessageShape(role="assistant", reasoning=True)
        call = MessageShape(role="assistant", filled=False, calls=CALL.calls, reasoning=True)
    if not tools:
        return [(USER, reply, USER, reply), (SYSTEM, USER, reply, USER, reply, USER, reply)]
    return [
        (USER, call, RESULT, reply, USER, reply),
        (SYSTEM, USER, reply, USER, call, RESULT, call, RESULT, reply, USER, call, RESULT, reply),
    ]


def _fault_in(template: ChatTemplate, ends: Ends, conversation: Sequence[MessageShape]) -> str | None:
    stream, role = "", ""
    for index, shape in enumerate(conversation):
        if shape.role != "assistant":
            role = shape.role
            continue
        try:
            prompt = template.render(tuple(conversation[:index]), True)
            whole = template.render(tuple(conversation[: index + 1]), False)
        except TemplateFailure as failure:
            return str(failure)
        if not prompt.startswith(stream):
            return f"rewrites earlier turns when a {role} message follows: {_difference(stream, prompt)}"
        if not whole.startswith(prompt):
            return f"begins an assistant turn in another way than the prompt: {_difference(prompt, whole)}"
        try:
            end = cut_turn(whole, index, ends.of(shape))
        except ValueError:
            return "leaves an assistant turn out"
        turn_end = ends.of(shape)
        stream = whole[:end] + ("" if turn_end.borrowed else turn_end.text or "")
        if not whole.startswith(stream):
            stream = whole[:end]
    return None


def _difference(expected: str, actual: str) -> str:
    """First difference of two texts. The texts of messages are shown as …."""
    at = len(common_prefix(expected, actual))
    shown = [re.sub(r"⸨[^⸩]*⸩?", "…", text[max(at - 8, 0) : at + _CONTEXT]) for text in (expected, actual)]
    return f"{shown[0]!r} becomes {shown[1]!r}"
