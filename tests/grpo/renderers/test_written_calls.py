"""Calls that models write: in other keys, beside malformed ones, with values that JSON does not have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from grpo.messages import Message, ToolCall
from grpo.renderers.chat_template import Renderer
from grpo.renderers.reply_format import HERMES
from grpo.strict_json import encode
from tests.grpo.renderers import published
from tests.grpo.renderers.conversations import LOOK_UP

HOSTILE = {
    "half a surrogate pair": r'"\ud83d"',
    "NaN": "NaN",
    "infinity": "-Infinity",
    "1e999": "1e999",
    "ten thousand levels": "[" * 10_000 + "]" * 10_000,
    "900 levels": "[" * 900 + "]" * 900,
    "a million digits": "9" * 1_000_000,
}


def _json(key: str) -> Callable[[str], str]:
    return lambda value: f'{{"name": "look_up", "{key}": {{"order": {value}}}}}'


WRITTEN: dict[str, Callable[[str], str]] = {
    "qwen3": lambda value: f"<tool_call>\n{_json('arguments')(value)}\n</tool_call>",
    "llama3_1": _json("parameters"),
    "qwen3_5_think": lambda value: (
        f"<tool_call>\n<function=look_up>\n<parameter=most>\n{value}\n</parameter>\n</function>\n</tool_call>"
    ),
    "gemma4": lambda value: f"<|tool_call>call:look_up{{most:{value}}}<tool_call|>",
    "lfm2_2_5": lambda value: f"<|tool_call_start|>[look_up(order={value})]<|tool_call_end|>",
    "gptoss": lambda value: (
        '<|channel|>commentary to=functions.look_up <|constrain|>json<|message|>{"order": ' + value + "}"
    ),
    "deepseekv3": lambda value: (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look_up\n```json\n"
        f'{{"order": {value}}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
}


def _renderer(name: str) -> Renderer:
    source = published.template(name)
    if name in ("gptoss", "deepseekv3"):
        end = str(published.of_family(name).eos_token)
        return Renderer(published.tokenizer("{#- turns as generated #}" + source, end=end), tools=(LOOK_UP,))
    return Renderer(published.of_family(name), tools=(LOOK_UP,))


@pytest.mark.parametrize("name", WRITTEN)
def test_a_value_that_json_lacks_never_reaches_a_tool(name: str):
    """In each family's format the reply is a message, and whatever its calls have can be written as strict JSON."""
    renderer = _renderer(name)
    for kind, value in HOSTILE.items():
        parsed = renderer.parse_text(WRITTEN[name](value))
        assert parsed.malformed is not None or parsed.tool_calls, kind
        assert encode([[call.name, dict(call.arguments)] for call in parsed.tool_calls]).encode()
        if not parsed.tool_calls:
            assert str(parsed.malformed).startswith("not a tool call: "), kind


GOOD = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
CALL = ToolCall(name="f", arguments={"x": 1})


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "f"}', {}),
        ('{"name": "f", "arguments": null}', {}),
        ('{"name": "f", "arguments": ""}', {}),
        ('{"name": "f", "parameters": {"x": 1}}', {"x": 1}),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', {"x": 1}),
        ('{"type": "function", "function": {"name": "f", "arguments": null}}', {}),
        ('{"id": "c1", "name": "f"}', {}),
    ],
)
def test_arguments_that_are_left_out_are_none(body: str, arguments: dict[str, object]):
    """As models write calls of tools without arguments; `parameters` is another name of them."""
    message = HERMES.parse(f"<tool_call>{body}</tool_call>")
    assert message.malformed is None
    assert message.tool_calls == (ToolCall(name="f", arguments=arguments),)


@pytest.mark.parametrize(
    "bad",
    [
        '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
        "<tool_call>look up order 12</tool_call>",
        '<tool_call>{"name": "f"</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}} and more</tool_call>',
    ],
)
def test_a_malformed_call_does_not_discard_those_beside_it(bad: str):
    """Before, between and after them; its text is content, with the reason."""
    for text, count in ((bad + GOOD, 1), (GOOD + bad, 1), (f"{GOOD}\n{bad}\n{GOOD}", 2), (f"Yes. {bad}{GOOD}", 1)):
        message = HERMES.parse(text)
        assert message.tool_calls == (CALL,) * count, text
        assert message.malformed is not None
        assert bad in message.content


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "lfm2_2_5", "gemma4"])
def test_a_malformed_call_beside_a_good_one_keeps_the_good_one_in_each_family(name: str):
    """Two calls of the family's own form, of which one breaks off."""
    renderer = _renderer(name)
    whole = renderer.decode(
        renderer.encode_reply(
            Message(role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={}),))
        )
    )
    opening = whole[: whole.index("look_up")]
    broken = f"{opening}?!" + whole[whole.index("look_up") + 7 :].replace(":", "?")
    parsed = renderer.parse_text(f"{whole}\n{broken}")
    assert [call.name for call in parsed.tool_calls] == ["look_up"]
    assert parsed.malformed is not None


@pytest.mark.parametrize(
    "text",
    [
        "I write <tool_call> to call a tool.",
        "The mark is `<tool_call>`, then JSON, then `</tool_call>`.",
        'A "<tool_call>".',
        '"<tool_call>" x</tool_call>',
    ],
)
def test_a_mention_of_the_marker_is_prose(text: str):
    """A marker in quotes, and one that nothing closes and no call follows."""
    assert HERMES.parse(text) == Message(role="assistant", content=text)


def test_calls_are_read_up_to_the_64th_malformed_one():
    """A reply of nothing but marks would otherwise be searched for each of them."""
    bad = "<tool_call>?</tool_call>"
    assert HERMES.parse(bad * 63 + GOOD).tool_calls == (CALL,)
    assert HERMES.parse(bad * 64 + GOOD).tool_calls == ()


def test_a_call_that_breaks_off_at_its_marker_is_malformed():
    """The limit of tokens may end a reply there."""
    assert HERMES.parse("Yes. <tool_call>").malformed is not None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<tool_call>{"name": "f"}</tool_call>', "no arguments"),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "null arguments"),
        ('<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>', "parameters for arguments"),
        ('<tool_call>{"name": "f", "arguments": null, "parameters": {"x": 1}}</tool_call>', "parameters for arguments"),
        ('<tool_call>\n```json\n{"name": "f", "arguments": {"x": 1}}\n```\n</tool_call>', "code fence"),
        (f'<tool_call>{{"name": "f", "arguments": {{"x": 1}}}}\n{GOOD}', "no closing mark"),
        (GOOD, None),
        (f"Yes. {GOOD} I wait.", None),
        ('<tool_call>{"name": "f", "arguments": {}}</tool_call>', None),
    ],
)
def test_a_repaired_call_says_what_was_repaired(text: str, reason: str | None):
    """A call as its format has it is not repaired; text around a call is content."""
    message = HERMES.parse(text)
    assert message.malformed is None
    assert [call.repaired for call in message.tool_calls] == [reason, None][: len(message.tool_calls)]


def test_repairs_are_by_the_names_of_the_familys_own_format():
    """Llama 3 writes `parameters`; `arguments` is the other name there."""
    renderer = _renderer("llama3_1")
    [own] = renderer.parse_text('{"name": "look_up", "parameters": {"order": 1}}').tool_calls
    [other] = renderer.parse_text('{"name": "look_up", "arguments": {"order": 1}}').tool_calls
    assert (own.repaired, other.repaired) == (None, "arguments for parameters")
    assert own == other


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ('<tool_call>[{"name": "f", "arguments": {"x": 1}}, {"name": 7}]</tool_call>', '{"name": 7}'),
        ('<tool_call>[{"name": 7}, {"name": "f", "arguments": {"x": 1}}]</tool_call>', '{"name": 7}'),
    ],
)
def test_a_malformed_call_in_a_list_does_not_discard_the_others(text: str, bad: str):
    """Its own text is content, not that of the good one."""
    message = HERMES.parse(text)
    assert message.tool_calls == (CALL,)
    assert (message.content, message.malformed) == (bad, f"not a tool call: {bad}")


def test_a_malformed_call_in_a_python_list_does_not_discard_the_others():
    """LFM2 writes all calls of a reply in one list."""
    message = _renderer("lfm2_2_5").parse_text('<|tool_call_start|>[look_up(order="1"), look_up("2")]<|tool_call_end|>')
    assert message.tool_calls == (ToolCall(name="look_up", arguments={"order": "1"}),)
    assert message.malformed == "not a tool call: look_up('2')"


@pytest.mark.parametrize(
    "text",
    [
        "Use <tool_call> and </tool_call> tags to call.",
        "I write <tool_call>…</tool_call> to call a tool.",
        "<tool_call> begins a call, and <tool_call> may stand twice.",
    ],
)
def test_marks_within_a_sentence_are_prose(text: str):
    """No call stands between them."""
    assert HERMES.parse(text) == Message(role="assistant", content=text)


def test_a_mention_before_a_call_does_not_discard_it():
    """The first mark is prose, as another one follows it before anything closes it."""
    message = HERMES.parse(f"The <tool_call> mark begins it: {GOOD}")
    assert message.tool_calls == (CALL,)
    assert (message.content, message.malformed) == ("The <tool_call> mark begins it:", None)


@pytest.mark.parametrize("text", ["<tool_call>look up order 12</tool_call>", "Yes: <tool_call>order 12</tool_call>\n"])
def test_an_attempt_at_a_call_stays_malformed(text: str):
    """A reply that is, or ends with, marks without a call."""
    assert HERMES.parse(text).malformed is not None
