"""Chat templates of strangers: operations with very large results are refused, and all others are transformers' own."""

from __future__ import annotations

import time
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from grpo.errors import PolicyError
from grpo.messages import Message
from grpo.renderers.placeholders import shape_of, template_messages
from grpo.renderers.sandbox import LONGEST_SOURCE, TooLarge, render
from grpo.renderers.template import ChatTemplate, TemplateFailure
from tests.grpo.renderers import published

SHAPE = shape_of(Message(role="user", content="hi"))
MESSAGES = template_messages((SHAPE,))
NAMESPACE = "{% set ns = namespace(x=[1], s='ab', n=3) %}"
LOOP, END = "{% for i in range(99999) %}", "{% endfor %}"
LONG = "{% set long = 'x' * 2**21 %}"
BOMBS = {
    "power": "{% set x = 9**(9**10) %}",
    "squares in a loop": f"{NAMESPACE}{LOOP}{{% set ns.n = ns.n * ns.n %}}{END}",
    "long text": "{% set x = 'x'*(2**31) %}",
    "long list": "{% set x = (2**28)*[0] %}",
    "doubling by plus": f"{NAMESPACE}{LOOP}{{% set ns.s = ns.s + ns.s %}}{END}",
    "doubling by tilde": f"{NAMESPACE}{LOOP}{{% set ns.s = ns.s ~ ns.s %}}{END}",
    "doubling of a list": f"{NAMESPACE}{LOOP}{{% set ns.x = ns.x + ns.x %}}{END}",
    "doubling of a block": NAMESPACE
    + f"{LOOP}{{% set y %}}{{{{ ns.s }}}}{{{{ ns.s }}}}{{% endset %}}{{% set ns.s = y %}}{END}",
    "width of %": "{{ '%9999999999d' % 1 }}",
    "width of % that is a value": "{{ '%*d' % (10**9, 1) }}",
    "width of format": "{{ '{:>9999999999}'.format(1) }}",
    "width of format that is a value": "{{ '{:{}}'.format(1, 999999999) }}",
    "width of format_map": "{{ '{a:>9999999999}'.format_map({'a': 1}) }}",
    "format of markup": "{{ ('{:>9999999999}'|safe).format(1) }}",
    "format filter": "{{ '%9999999999d'|format(1) }}",
    "center": "{{ 'x'.center(10**9) }}",
    "center by attr": "{{ ('x'|attr('center'))(10**9) }}",
    "center filter": "{{ 'x'|center(width=10**9) }}",
    "expandtabs": "{{ ('\t' * 10000).expandtabs(99999) }}",
    "indent": "{{ ('a\n' * 99999)|indent(9999) }}",
    "replace": f"{LONG}{{{{ long.replace('x', long) }}}}",
    "replace filter": f"{LONG}{{{{ long|replace('x', long) }}}}",
    "join": f"{LONG}{{{{ long.join(['a', 'b'] * 99) }}}}",
    "join filter": f"{LONG}{{{{ range(9999)|map('string')|join(long) }}}}",
    "round": "{{ 5|round(-10**8) }}",
    "batch": "{{ [1]|batch(10**9, 'x')|list }}",
    "tojson": "{{ {'a': [1, 2]}|tojson(indent=10**8) }}",
    "lipsum": "{{ lipsum(10**6) }}",
    "printed text": f"{LONG}{LOOP}{{{{ long }}}}{END}",
    "other templates": "".join(f"{{% set v{i} = 1 %}}" for i in range(999)) + "{% include x %}" * 99,
    "long source": "{{ x }}" * 99999,
}


def conversation(source: str) -> ChatTemplate:
    return ChatTemplate(published.tokenizer(source), source)


@pytest.mark.parametrize("name", BOMBS)
def test_an_operation_with_a_very_large_result_is_refused(name: str):
    """Before it is computed, so that no bomb takes longer than three seconds of a core."""
    start = time.thread_time()
    with pytest.raises(PolicyError) as refused:
        conversation(BOMBS[name]).render((SHAPE,), True)
    assert time.thread_time() - start < 3
    assert len(str(refused.value)) < 2000


TOOLS = [{"type": "function", "function": {"name": "f", "description": "<b> é", "parameters": {"type": "object"}}}]
ORDINARY = (
    "{{ 'a' * 3 ~ 2 ** 10 ~ 7 % 4 ~ -3 // 2 ~ 1 / 4 ~ [1, 2][1:] + [3] ~ ('b',) * 2 }}",
    "{{ '%-5s|%03d' % ('a', 7) }}{{ '%(a)s' % {'a': 1} }}{{ '%5.2f'|format(2.5) }}",
    "{{ '{:>4}|{a}'.format(1, a=2) }}{{ '{a}'.format_map({'a': 3}) }}{{ ('<{}>'|safe).format('<') }}",
    "{{ 'x'|center(3) }}{{ 'a\nb'|indent(2) }}{{ [1, 2]|join('-') }}{{ 'aa'|replace('a', 'b', 1) }}",
    "{{ {'b': [1], 'a': 'é<'}|tojson(indent=1, sort_keys=true) }}{{ tools|tojson }}",
    "{{ 2.55|round(1) }}{{ [1, none]|map('abs')|first }}{{ [1, 200001]|select('gt', 200000)|list }}",
    "{{ range(5)|batch(2)|list }}{{ [3, 1]|sort }}{{ 'a,b'.split(',') }}{{ 'abc'.translate({97: 98}) }}",
    "{% if []|select %}an iterator is true{% endif %}{{ ['a', 'b']|map('upper')|join(',') }}",
    "{% autoescape true %}{{ '<b>' ~ 'x' }}{{ ('<b>'|safe) ~ '<' }}{{ ['<']|join('<i>'|safe) }}{% endautoescape %}",
    "{% generation %}{% set x %}{{ messages|length }}{% endset %}{{ x }}{% endgeneration %}{{ messages|tojson }}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}{{ m(1) }}{% call m(3) %}c{% endcall %}",
    "{% for k, v in {'a': 1}|items %}{{ k }}{{ v }}{{ loop.last }}{% break %}{% endfor %}{{ eos_token }}",
    "{{ namespace(a=1) }}{{ '{:,}'.format(1234567) }}{{ add_generation_prompt }}{{ documents is none }}",
    "{{ (tools or [{'function': {'description': '<'}}])[0].function.description|e }}",
    "{{ messages[0].role.upper() }}{{ messages[0].get('x', 'y') }}{{ 'é'.encode()|length }}{{ ' a '|trim }}",
)


@pytest.mark.parametrize("template", ORDINARY)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
def test_other_operations_are_those_of_transformers(template: str, tools: Any):
    """The same text, or no text of either."""

    def theirs() -> str:
        (text,), _ = render_jinja_template(
            [MESSAGES], tools=tools, chat_template=template, add_generation_prompt=True, eos_token="</s>"
        )
        return str(text)

    def ours() -> str:
        return render(template, MESSAGES, tools=tools, generate=True, tokens={"eos_token": "</s>"})

    assert ours() == theirs()


def test_a_long_conversation_is_rendered_in_each_usual_way():
    """3000 messages with calls of numbers: collected in a list, sliced in each turn, and printed as JSON."""
    template = (
        "{% set ns = namespace(list=[]) %}{% for m in messages %}{% set ns.list = ns.list + [m] %}"
        "{% set rest = messages[loop.index:] %}{{ m.role }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}"
        "{% endfor %}{{ ns.list | length }}"
    )
    arguments = {"points": [{"x": number, "y": number} for number in range(1400)], "deep": [[[1]]]}
    call = {"type": "function", "function": {"name": "plot", "arguments": arguments}}
    agent, user = {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "user", "content": "hi"}
    messages = [user if number % 1000 else agent for number in range(3000)]
    (theirs,), _ = render_jinja_template([messages], chat_template=template)
    assert render(template, messages, tools=None, generate=False, tokens={}) == theirs


def test_a_long_template_is_refused_before_it_is_compiled():
    """Python's compiler cannot be interrupted."""
    with pytest.raises(TooLarge, match=f"a value of size {LONGEST_SOURCE + 1}"):
        render("x" * (LONGEST_SOURCE + 1), MESSAGES, tools=None, generate=True, tokens={})


def test_the_error_names_the_bound():
    """And the model and the remedy, as for each failure of a template."""
    with pytest.raises(TemplateFailure, match=r"TooLarge: an operation would make .* size 10\d+, and .*Fix"):
        conversation("{{ 3 ** 50000000 }}").render((SHAPE,), True)
