from __future__ import annotations

import random
import re

import pytest

from grpo.messages import Message, Tool, ToolCall
from grpo.renderers.chat_template import Renderer
from grpo.renderers.python_calls import PythonCalls
from grpo.renderers.reply_format import HERMES, ReplyFormat
from grpo.renderers.tool_formats import JsonCalls, Marks, NamedCalls
from grpo.strict_json import encode
from tests.grpo.renderers import published
from tests.grpo.renderers.conversations import LOOK_UP

CALLS = {
    "qwen3": '<tool_call>\n{"name": "look_up", "arguments": {"order": "12", "most": 3}}\n</tool_call>',
    "llama3_1": '{"name": "look_up", "parameters": {"order": "12", "most": 3}}',
    "qwen3_5_think": (
        "<tool_call>\n<function=look_up>\n<parameter=order>\n12\n</parameter>\n<parameter=most>\n3\n</parameter>\n"
        "</function>\n</tool_call>"
    ),
    "gemma4": '<|tool_call>call:look_up{most:3,order:<|"|>12<|"|>}<tool_call|>',
    "lfm2_2_5": "<|tool_call_start|>[look_up(order='12', most=3)]<|tool_call_end|>",
    "muse_glimmer": (
        ' to=look_up<|message|><atem:function_calls>\n<atem:invoke name="look_up">\n'
        '<atem:parameter name="order">12</atem:parameter>\n<atem:parameter name="most">3</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls>"
    ),
}
KEPT = {
    "glm4moe": (
        "<tool_call>look_up\n<arg_key>order</arg_key>\n<arg_value>12</arg_value>\n<arg_key>most</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>"
    ),
    "gptoss": '<|channel|>commentary to=functions.look_up <|constrain|>json<|message|>{"order": "12", "most": 3}',
    "deepseekv3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look_up\n```json\n"
        '{"order": "12", "most": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
}
"""Calls in the formats of families whose turns stay as they were generated."""
CALL = ToolCall(name="look_up", arguments={"order": "12", "most": 3})


def family_renderer(name: str) -> Renderer:
    """Renderer of a family, whose `order` is a text and whose `most` is a number."""
    source = published.template(name)
    if name not in KEPT:
        return Renderer(published.of_family(name), tools=(LOOK_UP,))
    end = str(published.of_family(name).eos_token)
    return Renderer(published.tokenizer("{#- turns as generated #}" + source, end=end), tools=(LOOK_UP,))


@pytest.mark.parametrize(("name", "text"), [*CALLS.items(), *KEPT.items()])
def test_a_call_is_parsed_in_the_format_of_its_family(name: str, text: str):
    """The schema of the tool decides that the order is a text and the number a number."""
    assert family_renderer(name).parse_text(text).tool_calls == (CALL,)


@pytest.mark.parametrize(("name", "text"), [*CALLS.items(), *KEPT.items()])
def test_a_call_that_breaks_off_is_kept_with_the_reason(name: str, text: str):
    """Without its second half: no call, and the text for the model to read."""
    parsed = family_renderer(name).parse_text(text[: len(text) * 2 // 3])
    assert parsed.tool_calls == ()
    assert parsed.malformed is not None
    assert parsed.malformed.startswith("not a tool call: ")
    assert parsed.content


@pytest.mark.parametrize(("name", "text"), [*CALLS.items(), *KEPT.items()])
def test_no_reply_ends_a_run(name: str, text: str):
    """Five hundred replies of shuffled pieces of calls are messages, whatever they are made of."""
    renderer, draw = family_renderer(name), random.Random(name)
    pieces = [
        *re.findall(r"\w+|\s+|[^\w\s]", text),
        text,
        "\\",
        "'",
        "\x00",
        "é",
        "[f()][g()]",
        "f(*a, **b)",
        "-",
        "0x",
    ]
    for _ in range(500):
        reply = "".join(draw.choices(pieces, k=draw.randint(1, 30)))
        wrapped = draw.choice([reply, text[: len(text) // 2] + reply, reply + text[len(text) // 2 :], text + reply])
        parsed = renderer.parse_text(wrapped)
        assert parsed.role == "assistant"
        assert encode([[call.name, call.arguments] for call in parsed.tool_calls])


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "gemma4", "gptoss", "glm4moe", "deepseekv3"])
def test_the_form_that_environments_describe_is_parsed_in_each_family(name: str):
    """JSON between <tool_call> tags, as a scenario with tools of its own shows it."""
    text = '<tool_call>{"name": "look_up", "arguments": {"order": "12", "most": 3}}</tool_call>'
    text = f"<|channel|>final<|message|>{text}" if name == "gptoss" else text
    assert family_renderer(name).parse_text(text).tool_calls == (CALL,)


def test_reasoning_is_apart_from_the_reply():
    """Opened by the policy, opened by the prompt, and without an end."""
    opened = family_renderer("qwen3")
    assert opened.parse_text("<think>\na b\n</think>\n\nyes") == Message(
        role="assistant", content="yes", reasoning="a b"
    )
    assert opened.parse_text("<think>\na b") == Message(role="assistant", content="", reasoning="a b")
    assert opened.parse_text("yes") == Message(role="assistant", content="yes")
    begun = family_renderer("qwen3_5_think")
    ids = begun.tokenizer("a b\n</think>\n\nyes")["input_ids"]
    assert begun.parse_reply(ids) == Message(role="assistant", content="yes", reasoning="a b")
    assert begun.parse_reply(ids[:3]) == Message(role="assistant", content="", reasoning="a b")


def test_calls_that_are_not_parsed_stay_in_the_content():
    """Of an agent without tools. Reasoning and the texts around the content are removed as in other replies."""
    call = '<tool_call>{"name": "look_up", "arguments": {}}</tool_call>'
    form = ReplyFormat(reasoning=("<think>", "</think>"), around=("<a>", "</a>"), calls=HERMES.calls)
    parsed = form.parse_content(f"<think>a b</think><a>yes {call}</a>")
    assert parsed == Message(role="assistant", content=f"yes {call}", reasoning="a b")


def test_channels_of_harmony_are_reasoning_content_and_calls():
    """Analysis, a call with content before it, and a final message."""
    renderer = family_renderer("gptoss")
    text = (
        "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>commentary<|message|>one moment<|end|>"
        '<|start|>assistant to=functions.look_up<|channel|>commentary json<|message|>{"order": "12"}'
    )
    assert renderer.parse_text(text) == Message(
        role="assistant",
        content="one moment",
        reasoning="think",
        tool_calls=(ToolCall(name="look_up", arguments={"order": "12"}),),
    )
    final = renderer.parse_text("<|channel|>final<|message|>It is 5.")
    assert final == Message(role="assistant", content="It is 5.")


def test_plain_words_are_content():
    """Text without a call is what the customer reads."""
    assert HERMES.parse(" Hello. ") == Message(role="assistant", content="Hello.")


def test_a_tool_call_is_read_from_the_models_own_text():
    """The JSON between the markers becomes a call with its arguments; the text around it is content."""
    message = HERMES.parse('so <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call> it is')
    assert message.content == "so  it is"
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("f", {"x": 1})]


@pytest.mark.parametrize(
    "body",
    ["{broken", '{"name": "f", "x": 1}', '{"name": 1, "arguments": {}}', '{"name": "f", "arguments": []}', "[1]"],
)
def test_an_unreadable_call_is_malformed(body: str):
    """The message keeps the reason for the model."""
    message = HERMES.parse(f"<tool_call>{body}</tool_call>")
    assert message.tool_calls == ()
    assert message.malformed is not None
    assert body in message.malformed


@pytest.mark.parametrize(("name", "text"), [*CALLS.items(), *KEPT.items()])
def test_content_that_is_settled_begins_the_content_of_the_whole_reply(name: str, text: str):
    """At every cut of 300 replies of words, calls and pieces of calls; settled content is never taken back."""
    renderer, draw = family_renderer(name), random.Random(name)
    pieces = [*re.findall(r"\w+|\s+|[^\w\s]", text), text, "<think>x</think>", "Hello, ", "<tool_call>", "[", "{"]
    for _ in range(300):
        reply = "".join(draw.choice(pieces) for _ in range(draw.randint(1, 12)))
        content, settled = renderer.parse_text(reply).content, ""
        for end in range(len(reply) + 1):
            longer = renderer.settled_content(reply[:end])
            assert longer.startswith(settled), (reply, end)
            assert content.startswith(longer), (reply, end, longer, content)
            settled = longer


def test_text_before_a_call_is_settled_and_the_call_is_not():
    """Of `It is here. <tool_ca` the first sentence; a `<` that turns out to be text is settled with what follows."""
    assert HERMES.settled_content("It is here. <tool_ca") == "It is here."
    assert HERMES.settled_content("1 < 2 and <too") == "1 < 2 and"
    assert HERMES.settled_content("1 < 2 and <too bad") == "1 < 2 and <too bad"


A, B = (f'{{"name": "look_up", "parameters": {{"order": "{number}"}}}}' for number in (1, 2))


@pytest.mark.parametrize("text", [A + B, f"{A}; {B}", f"{A}\n{B}", f"<|python_tag|>{A}; {B}"])
def test_calls_without_a_marker_follow_each_other(text: str):
    """As Llama 3's models write them; text after them is content."""
    renderer = family_renderer("llama3_1")
    calls = tuple(ToolCall(name="look_up", arguments={"order": order}) for order in ("1", "2"))
    assert renderer.parse_text(text).tool_calls == calls
    assert renderer.parse_text(f"{text} Done.").content == "Done."


def test_two_calls_are_read_as_they_are_rendered():
    """Between them, Muse Glimmer's template ends a message; that is neither reasoning nor content."""
    turn = Message(
        role="assistant", content="", tool_calls=tuple(ToolCall(name="look_up", arguments={"order": n}) for n in "12")
    )
    renderer = family_renderer("muse_glimmer")
    parsed = renderer.parse_reply(renderer.encode_reply(turn))
    assert (parsed.content, parsed.tool_calls, parsed.reasoning) == ("", turn.tool_calls, None)


def test_numbers_of_calls_vary():
    """A family that counts its calls in a marker."""
    form = NamedCalls(Marks(opening="<call:0>", between="</call><call:1>", closing="</call>"), separator=" ")
    assert [c.name for c in form.parse('<call:0>f {"x": 1}</call><call:7>g {}</call>', ()).calls] == ["f", "g"]


def test_calls_in_python_stand_between_commas_or_on_lines():
    """`f(x=1), g()` and the same on two lines; an assignment is malformed."""
    form = PythonCalls(Marks(opening="<calls>", between=None, closing="</calls>"))
    for text in ("<calls>f(x=1), g()</calls>", "<calls>\nf(x=1)\ng()\n</calls>"):
        assert [(c.name, dict(c.arguments)) for c in form.parse(text, ()).calls] == [("f", {"x": 1}), ("g", {})]
    assert form.parse("<calls>\nx = f()\ng()\n</calls>", ()).malformed is not None


@pytest.mark.parametrize("literal", ["...", "{1, 2}", "b'x'", "1j", "-" * 7000 + "1"])
def test_a_literal_that_json_lacks_is_malformed(literal: str):
    """A call is kept as JSON; deep nesting ends in an error of memory."""
    form = PythonCalls(Marks(opening="<calls>", between=None, closing="</calls>"))
    parsed = form.parse(f"<calls>f(x={literal})</calls>", ())
    assert parsed.malformed is not None
    assert parsed.calls == ()


@pytest.mark.parametrize(
    "arguments", ["x=1, x=2", "**{'x': 1}", "x=1, **y", "x={'a': 1, 'a': 2}", "x=[{'a': 1, 'a': 2}]"]
)
def test_a_call_in_python_that_names_an_argument_twice_or_not_at_all_is_malformed(arguments: str):
    """As a key that occurs twice in JSON."""
    form = PythonCalls(Marks(opening="<calls>", between=None, closing="</calls>"))
    parsed = form.parse(f"<calls>f({arguments})</calls>", ())
    assert (parsed.calls, parsed.malformed is not None) == ((), True)


def test_only_white_space_between_calls_does_not_hide_their_end():
    """A closing text begins with the white space that separates calls."""
    form = JsonCalls(Marks(opening="<calls>", between="\n", closing="\n</calls>"), name="name", arguments="arguments")
    one = '{"name": "f", "arguments": {}}'
    assert len(form.parse(f"<calls>{one}\n{one}\n</calls>", ()).calls) == 2


@pytest.mark.parametrize(
    ("types", "text", "value"),
    [
        ({"type": ["string", "null"]}, "None", None),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": "string"}, "None", "None"),
        ({"type": "object"}, "{'a': [1, True]}", {"a": [1, True]}),
        ({"type": "array"}, "[1,", "[1,"),
        ({"type": "array"}, "(1, (2,))", [1, [2]]),
        ({"type": "array"}, "{1, 2}", "{1, 2}"),
        ({"type": "integer"}, "...", "..."),
        ({"type": "integer"}, "b'x'", "b'x'"),
    ],
)
def test_an_argument_without_quotes_has_the_type_of_its_schema(types: dict, text: str, value: object):
    """Null in JSON or Python where the schema allows it, objects and lists in either; what is neither stays a text."""
    tool = Tool(name="f", parameters={"type": "object", "properties": {"x": types}})
    call = f"<tool_call>\n<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>"
    renderer = Renderer(published.of_family("qwen3_5_think"), tools=(tool,))
    assert renderer.parse_text(call).tool_calls == (ToolCall(name="f", arguments={"x": value}),)
