"""Templates that are tried when they are chosen: each kind of turn is parsed back, and each named remedy works."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from grpo.errors import DataError, PolicyError
from grpo.learner.offline.read_back import check_read_back
from grpo.messages import Message, Tool, ToolCall
from grpo.renderers.chat_template import Renderer
from grpo.renderers.reply_format import ReplyFormat
from grpo.renderers.reply_grammar import ReplyShape
from grpo.renderers.trial import unread_reply
from tests.grpo.renderers import published
from tests.grpo.renderers.conversations import LOOK_UP, reply, result, user

ROLES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}CALLS<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = "{% if tools %}{{ tools | tojson }}\n{% endif %}"
NUMBERED = TOOLS + ROLES.replace(
    "CALLS",
    "{% for c in m.tool_calls or [] %}<|call|>{{ c.id }}<|argument|>{{ c.function.arguments | tojson }}<|end_call|>"
    "{% endfor %}",
).replace("{{ m.content }}", "{% if m.role == 'tool' %}## Return of {{ m.tool_call_id }}\n{% endif %}{{ m.content }}")
"""Calls as Kimi K2's template prints them: the id stands for the name."""
TYPED = TOOLS + ROLES.replace(
    "CALLS",
    '{% if m.tool_calls %}<|calls>{% for c in m.tool_calls %}<|invoke name="{{ c.function.name }}">\n'
    "{% for key, value in c.function.arguments.items() %}"
    '{% if value is string %}<|parameter name="{{ key }}" string="true">{{ value }}</|parameter>\n'
    '{% else %}<|parameter name="{{ key }}" string="false">{{ value | tojson }}</|parameter>\n{% endif %}'
    "{% endfor %}</|invoke>\n{% endfor %}</|calls>{% endif %}",
)
"""Calls as DeepSeek V4's: an attribute says whether a value is a text."""
SINGLE = TOOLS + ROLES.replace(
    "CALLS",
    "{% if m.tool_calls %}<|call|>{{ {'name': m.tool_calls[0].function.name, 'arguments': "
    "m.tool_calls[0].function.arguments} | tojson }}{% endif %}",
)
"""The first call of a turn, as GigaChat's."""
ORDERS = (
    ToolCall(name="look_up", arguments={"order": "7", "most": 2}),
    ToolCall(name="look_up", arguments={"order": "8", "most": 3}),
)
BOTH = Message(role="assistant", content="wait", tool_calls=ORDERS)


def _renderer(template: str) -> Renderer:
    return Renderer(published.tokenizer(template, end="<|im_end|>"), tools=(LOOK_UP,))


@pytest.mark.parametrize(("template", "added"), [(NUMBERED, ("ids",)), (TYPED, ())])
def test_calls_are_in_the_form_of_the_template(template: str, added: tuple[str, ...]):
    """A text beside two calls, with a number that is a text; its own form is kept, not the generic one."""
    renderer = _renderer(template)
    assert renderer.added == added
    ids = renderer.encode_reply(BOTH, (user("orders"),))
    assert "<tool_call>" not in renderer.decode(ids)
    assert renderer.parse_reply(ids) == BOTH
    assert renderer.parse_reply(renderer.encode_reply(reply("yes"))) == reply("yes")


def test_a_grammar_writes_the_mark_of_the_type():
    """Texts and numbers of a constrained call stand after their own marks."""
    shape = ReplyShape(calls={"look_up": LOOK_UP.parameters}, has_text=False)
    grammar = _renderer(TYPED).reply_grammar(shape)
    assert 'order\\" string=\\"true\\"' in grammar
    assert 'most\\" string=\\"false\\"' in grammar


def test_calls_are_numbered_through_a_conversation_and_results_named_by_them():
    """The third call of a conversation is number 2, and each result names the call that it answers."""
    renderer = _renderer(NUMBERED)
    again = Message(role="assistant", content="", tool_calls=ORDERS[:1])
    conversation = (user("orders"), BOTH, result("first"), result("second"), again, result("third"), reply("done"))
    text = renderer.tokenizer.decode(renderer.tokenize_conversation(conversation)[0])
    assert "<|call|>functions.look_up:0<|argument|>" in text
    assert "<|call|>functions.look_up:2<|argument|>" in text
    for number, answer in enumerate(("first", "second", "third")):
        assert f"## Return of functions.look_up:{number}\n{answer}" in text


def test_results_that_arrive_out_of_order_are_named_by_their_ids():
    """As a server that reads the saved template is given them."""
    renderer = _renderer(NUMBERED)
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": {}}} for name in ("a", "b")]
    results = [{"role": "tool", "tool_call_id": name, "content": f"of {name}"} for name in ("b", "a")]
    text = renderer.tokenizer.apply_chat_template(
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": calls}, *results],
        chat_template=renderer.template,
        tokenize=False,
    )
    assert "## Return of functions.f:1\nof b" in text
    assert "## Return of functions.f:0\nof a" in text


def test_a_second_call_that_the_template_leaves_out_is_refused_in_a_demonstration():
    """With the place and what to write instead; one call is read back."""
    renderer = _renderer(SINGLE)
    assert renderer.most_calls == 1
    with pytest.raises(
        DataError, match=r"line 3 has 2 calls, but the model's chat template renders at most 1 per turn\. Write each"
    ):
        check_read_back(BOTH, (user("x"),), renderer, "line 3")
    check_read_back(replace(BOTH, tool_calls=ORDERS[:1]), (user("x"),), renderer, "line 3")


def test_a_rollout_goes_on_after_two_calls_of_a_turn_that_renders_one():
    """The policy may write more than its template renders: both results are read."""
    renderer = _renderer(SINGLE)
    bridge = renderer.build_continuation((user("x"), BOTH), (result("first"), result("second")))
    assert "first" in renderer.tokenizer.decode(bridge)
    assert "second" in renderer.tokenizer.decode(bridge)


@pytest.mark.parametrize("name", ["deepseekv3", "glm4moe", "gptoss"])
def test_every_remedy_that_is_named_works_with_tools(name: str):
    """A template of TRL that rewrites earlier turns: with each line of the message a renderer is made and goes on."""
    source, end = published.template(name), str(published.of_family(name).eos_token)
    with pytest.raises(PolicyError, match=r"is not prefix-preserving") as refusal:
        Renderer(published.of_family(name), tools=(LOOK_UP,))
    lines = [line for line in LINES if line in str(refusal.value)]
    assert lines
    for line in lines:
        renderer = Renderer(published.tokenizer(f"{line}\n{source}", end=end), tools=(LOOK_UP,))
        call = replace(BOTH, content="", tool_calls=ORDERS[:1])
        assert renderer.parse_reply(renderer.encode_reply(call)).tool_calls == ORDERS[:1]
        renderer.build_continuation((user("x"), call), (result("first"),))


LINES = ("{%- set enable_thinking = false %}", "{%- set enable_thinking = true %}", "{#- turns as generated #}")


def test_a_remedy_that_does_not_work_is_not_named():
    """After a turn as it was generated the template cannot go on: its text stands nowhere in what follows."""
    source = ROLES.replace("CALLS", "").replace(
        "{{ m.content }}",
        "{% if m.role == 'assistant' and not loop.last %}…{% else %}{{ m.content }}{% endif %}",
    )
    with pytest.raises(PolicyError) as refusal:
        _renderer(source)
    assert "turns as generated" not in str(refusal.value)


ALTERNATING = """{{ bos_token }}{% set ns = namespace(index=0) %}{% for m in messages %}
{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
{%- if (m.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- set ns.index = ns.index + 1 %}{% endif %}
{%- if m.role == 'tool' %}{{ '[RESULT]' + m.content + '[/RESULT]' }}
{%- elif m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}
{%- else %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ '[CALL]' + c.function.name }}
{{- '[ARGS]' + c.function.arguments | tojson }}{% endfor %}{{ eos_token }}{% endif %}{%- endfor %}"""
"""Turns of the user and the agent alternate, as in Ministral 3. Only a turn with calls does not count."""
LISTING = """{% for tool in tools %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
ONE_TYPE = (
    "{% for tool in tools or [] %}{% for p in tool.function.parameters.properties.values() %}{{ 'type: ' + p.type }}"
    "{% endfor %}{% endfor %}" + SINGLE
)
"""Prints the type of each property, of which there must be one."""


def test_a_conversation_goes_on_after_the_result_of_a_malformed_call():
    """A template that counts turns would refuse the next reply, if the malformed call were a plain text to it."""
    renderer = Renderer(published.tokenizer(ALTERNATING), tools=(LOOK_UP,))
    broken = Message(role="assistant", content="", malformed="not JSON")
    chat = [user("order 7"), broken, result("not JSON"), reply("I see.")]
    text = renderer.tokenizer.decode(renderer.build_continuation(chat, [user("and now?")]))
    assert text == "[INST]and now?[/INST]"


def test_a_template_that_lists_tools_without_any_is_refused_with_the_line_to_add():
    """`tools` is None where there are none; with the line the renderer is made."""
    line = "{%- set tools = tools or [] %}"
    refusal = re.escape(f"fails without tools, because it lists them. Begin it with {line}")
    with pytest.raises(PolicyError, match=refusal):
        Renderer(published.tokenizer(LISTING))
    for tools in ((), (LOOK_UP,)):
        assert Renderer(published.tokenizer(line + LISTING), tools=tools).build_prompt([user("hello")])


def test_a_tool_whose_schema_the_template_cannot_print_is_named():
    """The template expects one type for each property; the tool beside it is not to blame."""
    either = Tool(name="either", description="", parameters={"properties": {"x": {"type": ["string", "null"]}}})
    with pytest.raises(PolicyError, match=r"on the schema of the tool either: TypeError.*one type for each property"):
        Renderer(published.tokenizer(ONE_TYPE), tools=(LOOK_UP, either))
    assert Renderer(published.tokenizer(ONE_TYPE), tools=(LOOK_UP,)).build_prompt([user("hello")])


STRICT = TOOLS + ROLES.replace(
    "CALLS",
    "{% for c in m.tool_calls or [] %}<tool_call>"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}</tool_call>{% endfor %}",
)


@pytest.mark.parametrize(
    ("refused", "fault"),
    [
        ("m.role == 'user' and not m.content", "fails on messages of user: TemplateError: no"),
        ("m.role == 'tool' and not m.content", r"assistant(, tool){8}: TemplateError: no"),
        ("m.tool_calls and m.tool_calls | length > 2", "fails on messages of user, assistant: TemplateError: no"),
        ("loop.index > 40", r"tool, assistant, after \d+ others: TemplateError: no"),
    ],
)
def test_a_template_that_would_fail_in_a_rollout_is_refused_when_it_is_chosen(refused: str, fault: str):
    """An empty text, an empty result, several calls and a long conversation occur. The error does not list it whole."""
    source = STRICT.replace(
        "<|im_start|>", f"{{% if {refused} %}}{{{{ raise_exception('no') }}}}{{% endif %}}<|im_start|>", 1
    )
    with pytest.raises(PolicyError, match=fault) as refusal:
        _renderer(source)
    assert len(str(refusal.value)) < 500


def test_a_template_that_shows_only_the_last_messages_is_refused_when_it_is_chosen():
    """However many these are, up to those of a long conversation: sampled tokens would leave the context."""
    with pytest.raises(PolicyError, match="rewrites earlier turns when a user message follows"):
        _renderer(STRICT.replace("in messages %}", "in messages[-60:] %}"))


def test_a_reply_in_reasoning_that_the_prompt_has_opened_is_read():
    """The template renders what follows the opening mark. A turn that it does not render is named."""
    form = ReplyFormat(reasoning=("<think>", "</think>"), around=("", ""), calls=None)

    def render(message: Message) -> str:
        return f"{message.reasoning or ''}</think>{message.content}"

    assert unread_reply(form, render, reasons=True, begun=True) is None
    assert unread_reply(form, lambda message: None, reasons=True, begun=True) == "a text"
