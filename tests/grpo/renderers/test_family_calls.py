"""Calls of families that no installed package ships: rendered, parsed, streamed and constrained as they write them."""

from __future__ import annotations

import pytest

from grpo.messages import Message, ToolCall
from grpo.policy.grammars import Grammars
from grpo.renderers.reply_grammar import ReplyShape
from tests.grpo.renderers.conversations import LOOK_UP, reply, result, user
from tests.grpo.renderers.family_templates import FAMILIES, Family

FIRST = ToolCall(name="look_up", arguments={"order": "12", "most": 3})
SECOND = ToolCall(name="look_up", arguments={"order": "7"})
EMPTY = ToolCall(name="look_up", arguments={})


def _turn(content: str, *calls: ToolCall) -> Message:
    return Message(role="assistant", content=content, tool_calls=calls)


def _turns(family: Family) -> dict[str, Message]:
    """Texts of turns with what they say."""
    turns = {family.one: _turn("", FIRST), family.two: _turn("", FIRST, SECOND), family.empty: _turn("", EMPTY)}
    return turns | ({} if family.beside is None else {family.beside: _turn("I look.", FIRST)})


def _without_reasoning(text: str) -> str:
    """Text of a turn after the marks of its reasoning, which is empty."""
    return text.strip().removeprefix("<|START_THINKING|><|END_THINKING|>").removeprefix("</think>").strip()


each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


@each_family
def test_tools_and_calls_are_in_the_templates_own_form(family: Family):
    """No part of it is generic but those that are named."""
    renderer = family.renderer(LOOK_UP)
    assert renderer.chat_format.form == family.form
    assert renderer.added == family.added
    assert not renderer.chat_format.one_call
    prompt = renderer.tokenizer.decode(renderer.build_prompt((user("hello"),)))
    assert all(text in prompt for text in ("look_up", "Find an order", "order", "most"))


@each_family
def test_a_call_is_rendered_as_the_family_writes_it(family: Family):
    """One call, two, one without arguments, and a text with a call."""
    renderer = family.renderer(LOOK_UP)
    for text, turn in _turns(family).items():
        rendered = renderer.decode(renderer.encode_reply(turn))
        assert _without_reasoning(rendered) == text


@each_family
def test_a_call_is_parsed_as_the_family_writes_it(family: Family):
    """The same turns, read back from their texts."""
    renderer = family.renderer(LOOK_UP)
    for text, turn in _turns(family).items():
        parsed = renderer.parse_text(text)
        assert (parsed.content, parsed.tool_calls, parsed.malformed) == (turn.content, turn.tool_calls, None)


@each_family
def test_a_malformed_call_is_named_and_the_next_one_is_read(family: Family):
    """Its text stays in the content. The conversation goes on with the reason as its result."""
    renderer = family.renderer(LOOK_UP)
    parsed = renderer.parse_text(family.malformed)
    assert parsed.tool_calls == ()
    assert parsed.malformed is not None
    assert parsed.malformed.startswith("not a tool call: ")
    assert "look_up" in parsed.content
    bridge = renderer.build_continuation((user("order 12"), parsed), (result("no such call"),))
    assert "no such call" in renderer.tokenizer.decode(bridge)
    both = renderer.parse_text(f"{family.malformed}\n{family.one}")
    assert (both.tool_calls, both.malformed) == ((FIRST,), parsed.malformed)


@each_family
def test_a_streamed_reply_shows_the_text_and_never_the_call(family: Family):
    """At every cut the settled content begins the content of the whole reply."""
    renderer = family.renderer(LOOK_UP)
    for text, turn in _turns(family).items():
        settled = ""
        for end in range(len(text) + 1):
            longer = renderer.settled_content(text[:end])
            assert longer.startswith(settled)
            assert turn.content.startswith(longer), text[:end]
            settled = longer
        if not renderer.reasons:
            assert settled == turn.content


@each_family
def test_a_required_call_is_what_the_grammar_allows(family: Family):
    """The family's call is taken, a text is not."""
    renderer = family.renderer(LOOK_UP)
    shape = ReplyShape(calls={"look_up": LOOK_UP.parameters}, has_text=False, one_call=True)
    grammar = renderer.reply_grammar(shape)
    grammars = Grammars(renderer.tokenizer, sorted(renderer.stop_ids))

    def allows(text: str) -> bool:
        matcher = grammars.matcher(grammar)
        taken = matcher.consume_tokens(renderer.tokenizer(text, add_special_tokens=False)["input_ids"])
        return bool(taken and matcher.is_accepting())

    assert allows(renderer.decode(renderer.encode_reply(_turn("", FIRST))))
    assert not allows(renderer.decode(renderer.encode_reply(reply("It is here."))))


@each_family
def test_a_conversation_goes_on_after_two_results(family: Family):
    """Both results are read, each after its call, and the next turn is rendered."""
    renderer = family.renderer(LOOK_UP)
    chat = (user("orders"), _turn("", FIRST, SECOND), result("is lost"), result("is here"), reply("done"), user("bye"))
    ids, mask = renderer.tokenize_conversation((*chat, reply("bye")))
    text = renderer.tokenizer.decode(ids)
    assert text.index("is lost") < text.index("is here") < text.index("done")
    assert sum(mask) == sum(
        len(renderer.encode_reply(message, chat[:place]))
        for place, message in enumerate((*chat, reply("bye")))
        if message.role == "assistant"
    )
