"""Chat templates of strangers end with an error before an operation takes long or much memory."""

from __future__ import annotations

import resource
import time

import pytest

from grpo.errors import PolicyError
from grpo.messages import Message
from grpo.renderers.placeholders import shape_of, template_messages
from grpo.renderers.sandbox import LONGEST_SOURCE, TooLarge, render
from grpo.renderers.template import RENDER_S, ChatTemplate, TemplateFailure
from tests.grpo.renderers import published

MESSAGES = template_messages((shape_of(Message(role="user", content="hi")),))
BIG = "{% set big = 'x' * 2**21 %}"
NAMESPACE = "{% set ns = namespace(x=[1], s='ab', n=3, d={}) %}"
LOOP = "{% for i in range(99999) %}"
END = "{% endfor %}"
BOMBS = {
    # operators
    "power of power": "{% set x = 9**(9**10) %}",
    "power": "{% set x = 10**10**8 %}",
    "power of two": "{{ 2 ** (10**9) }}",
    "squares in a loop": f"{NAMESPACE}{LOOP}{{% set ns.n = ns.n * ns.n %}}{END}",
    "long text": "{% set x = 'x'*(2**31) %}",
    "long text from the right": "{% set x = (2**31)*'x' %}",
    "long list": "{% set x = [0]*(2**28) %}",
    "long tuple": "{% set x = (0,)*(2**28) %}",
    "list of long texts": f"{BIG}{{% set x = [big]*1000 %}}{{{{ x|tojson }}}}",
    "doubling by plus": f"{NAMESPACE}{LOOP}{{% set ns.s = ns.s + ns.s %}}{END}",
    "doubling by tilde": f"{NAMESPACE}{LOOP}{{% set ns.s = ns.s ~ ns.s %}}{END}",
    "doubling of a list": f"{NAMESPACE}{LOOP}{{% set ns.x = ns.x + ns.x %}}{END}",
    "list in itself": f"{NAMESPACE}{LOOP}{{% set ns.x = [ns.x, ns.x] %}}{END}",
    "tuple in itself": f"{NAMESPACE}{LOOP}{{% set ns.x = (ns.x, ns.x) %}}{END}",
    "dictionary in itself": f"{NAMESPACE}{LOOP}{{% set ns.d = {{'a': ns.d, 'b': ns.d}} %}}{END}",
    "dictionary by a call": f"{NAMESPACE}{LOOP}{{% set ns.d = dict(a=ns.d, b=ns.d) %}}{END}",
    "deep list": f"{NAMESPACE}{LOOP}{{% set ns.x = [ns.x] %}}{END}",
    "many long texts": f"{NAMESPACE}{{% for i in range(99999) %}}{{% set ns.x = ns.x + ['x' * 100000 ~ i] %}}{END}",
    "many slices": f"{BIG}{LOOP}{{% set y = big[1:] %}}{END}",
    "chain of namespaces": f"{NAMESPACE}{LOOP}{LOOP}{{% set ns.x = namespace(p=ns.x) %}}{END}{END}",
    # formats
    "width of %": "{{ '%9999999999d' % 1 }}",
    "width of % in brackets": "{{ '%(a)9999999999d' % {'a': 1} }}",
    "precision of %": "{{ '%.999999999f' % 1.5 }}",
    "width of % after nested brackets": "{{ '%(a(b))999999999d' % {'a(b)': 1} }}",
    "long width of %": "{{ ('%' ~ '0' * 999 ~ '999999999d') % 1 }}",
    "star of %": "{{ '%*d' % (10**9, 1) }}",
    "many values of %": f"{BIG}{{{{ ('%(a)s' * 9999) % {{'a': big}} }}}}",
    "width of format": "{{ '{:>9999999999}'.format(1) }}",
    "width in width of format": "{{ '{:{}}'.format(1, 999999999) }}",
    "precision of format": "{{ '{:.999999999f}'.format(1.5) }}",
    "format_map": "{{ '{a:>9999999999}'.format_map({'a': 1}) }}",
    "many values of format": f"{BIG}{{{{ ('{{0}}' * 9999).format(big) }}}}",
    "format by getitem": "{{ 'x{:>9999999999}'['format'](1) }}",
    "format by attr": "{{ ('x{:>9999999999}'|attr('format'))(1) }}",
    "format of markup": "{{ ('{:>9999999999}'|safe).format(1) }}",
    "format filter": "{{ '%9999999999d'|format(1) }}",
    # methods
    "center": "{{ 'x'.center(10**9) }}",
    "ljust": "{{ 'x'.ljust(10**9) }}",
    "zfill": "{{ 'x'.zfill(10**9) }}",
    "ljust of markup": "{{ ('x'|safe).ljust(10**9) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "replace": f"{BIG}{{{{ big.replace('x', big) }}}}",
    "replace of nothing": f"{BIG}{{{{ big.replace('', big) }}}}",
    "join": f"{BIG}{{{{ big.join(big) }}}}",
    "rfind": "{% set a = 'a' * 10**6 %}{{ (a ~ a ~ a).rfind(a ~ 'b' ~ a) }}",
    "strip of many characters": "{% set a = 'a' * 2**21 %}{{ a.strip(('b' * 2**20) ~ 'a') }}",
    "split": "{{ ('a ' * 2**20).split() }}",
    "to_bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "translate": f"{BIG}{{{{ big.translate({{120: big}}) }}}}",
    "encode": f"{BIG}{{{{ big.encode() }}}}",
    "fromkeys": f"{BIG}{{% set x = dict.fromkeys(range(9999), big) %}}{{{{ x }}}}",
    "numbers of one hash": "{{ dict.fromkeys(range(0, 99000 * (2**61 - 1), 2**61 - 1)) }}",
    # filters
    "center filter": "{{ 'x'|center(10**9) }}",
    "center filter of a constant": "{{ 'x'|center(1000000000) }}",
    "indent filter": "{{ 'x'|indent(10**9, true) }}",
    "indent filter of a text": f"{BIG}{{{{ ('a\n' * 99999)|indent(big) }}}}",
    "join filter": f"{BIG}{{{{ big|join(big) }}}}",
    "join filter of an attribute": f"{BIG}{{{{ range(9999)|map('string')|join(big) }}}}",
    "replace filter": f"{BIG}{{{{ big|replace('x', big) }}}}",
    "list of a range": "{{ range(10**9)|list }}",
    "map of center": "{{ range(99999)|map('string')|map('center', 50000)|list }}",
    "round": "{{ 5|round(-10**8) }}",
    "round of a text": "{{ 'x'|round(9, 'floor') }}",
    "sum of lists": "{{ (([[1]] * 9999)|sum(start=[])) }}{{ ([[1] * 9]) * 7000 |sum(start=[]) }}",
    "batch": "{{ [1]|batch(10**9, 'x')|list }}",
    "slice": "{{ [1]|slice(10**9)|list }}",
    "tojson with indent": "{{ {'a': [1, 2]}|tojson(indent=10**8) }}",
    "tojson with separators": f"{BIG}{{{{ {{'a': [1, 2]}}|tojson(separators=(big, big)) }}}}",
    "tojson of a long list": "{{ (['\x00' * 10] * 20000)|tojson }}",
    "sort of long texts": f"{BIG}{{{{ ([big] * 999)|sort }}}}",
    "divisibleby": "{{ '%999999999d' is divisibleby 5 }}",
    "urlize": "{{ 'a'|urlize }}",
    "lipsum": "{{ lipsum(10**6) }}",
    "cycler": f"{NAMESPACE}{LOOP}{LOOP}{{% set ns.x = cycler(ns.x, ns.x) %}}{END}{END}",
    # printed text
    "printed long": f"{BIG}{LOOP}{{{{ big }}}}{END}",
    "printed in a block": f"{BIG}{{% set y %}}{LOOP}{{{{ big }}}}{END}{{% endset %}}",
    "printed often": f"{{% set y %}}{LOOP}{LOOP}{{{{ i }}}}{END}{END}{{% endset %}}",
    "printed by a macro": f"{BIG}{{% macro m() %}}{LOOP}{{{{ big }}}}{END}{{% endmacro %}}{{{{ m() }}}}",
    "doubling macros": "{% macro m0() %}xxxxxxxx{% endmacro %}"
    + "".join(f"{{% macro m{i + 1}() %}}{{{{ m{i}() }}}}{{{{ m{i}() }}}}{{% endmacro %}}" for i in range(40))
    + "{{ m40() }}",
    "arguments of a macro": "{% macro m(n) %}{{ m(n + 1, varargs, varargs) if n < 100 else varargs }}{% endmacro %}"
    "{{ m(0, 1, 2) }}",
    "recursion": "{% macro m() %}{% set x = 'x' * 2**21 %}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive loop": "{% for x in [[1]] recursive %}{% set y = 'x' * 2**21 %}{{ loop([[1]]) }}{% endfor %}",
    "long printed text": "{{ 'x' * 2**20 }}",
    "message of an error": "{{ raise_exception('x' * 2**21) }}",
    "long source": "{{ x }}" * 99999,
}

LOOPS = ("chain of namespaces", "cycler", "doubling macros", "printed often")
"""Bombs of many small operations, which the time limit of a rendering ends, or the sum of their values."""


def conversation(source: str) -> ChatTemplate:
    return ChatTemplate(published.tokenizer(source), source)


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_soon_and_in_little_memory(name: str):
    """Within a second, or the time limit if it is a loop, and half a GiB, with a message shorter than a page."""
    used, start = memory(), time.thread_time()
    with pytest.raises(PolicyError) as refused:
        conversation(BOMBS[name]).render((shape_of(Message(role="user", content="hi")),), True)
    assert time.thread_time() - start < (RENDER_S + 1 if name in LOOPS else 1)
    assert memory() - used < 2**29
    assert len(str(refused.value)) < 2000


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ 'a' * 3 ~ 2 ** 10 ~ 7 % 4 ~ -3 // 2 ~ 1 / 4 }}", "aaa10243-20.25"),
        ("{{ '%-5s|%03d' % ('a', 7) }}{{ '%(a)s' % {'a': 1} }}", "a    |0071"),
        ("{{ '{:>4}|{a}'.format(1, a=2) }}{{ '{a}'.format_map({'a': 3}) }}", "   1|23"),
        (
            "{{ 'x'|center(3) }}{{ 'a\nb'|indent(2) }}{{ [1, 2]|join('-') }}{{ 'aa'|replace('a', 'b') }}",
            " x a\n  b1-2bb",
        ),
        ("{{ {'b': [1], 'a': 'é'}|tojson(indent=1, sort_keys=true) }}", '{\n "a": "é",\n "b": [\n  1\n ]\n}'),
        ("{{ 2.55|round(1) }}{{ [1, 2]|sum }}{{ [[1], [2]]|sum(start=[]) }}{{ 8 is divisibleby 2 }}", "2.53[1, 2]True"),
        (
            "{{ range(5)|batch(2)|list }}{{ [3, 1]|sort }}{{ 'a,b'.split(',') }}",
            "[[0, 1], [2, 3], [4]][1, 3]['a', 'b']",
        ),
        ("{% if []|select %}an iterator is true{% endif %}{{ [1, 2][1:] + [3] }}", "an iterator is true[2, 3]"),
        ("{% for k, v in {'a': 1}|items %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}", "a1True"),
        ("{% generation %}{% set x %}{{ messages|length }}{% endset %}{{ x }}{% endgeneration %}", "1"),
        ("{{ ns is defined }}{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}", "False2"),
        (
            "{{ messages[0].role.upper() }}{{ messages[0].get('x', 'y') }}{{ tools is none }}{{ eos_token }}",
            "USERyTrue</s>",
        ),
    ],
)
def test_ordinary_operations_compute_as_in_jinja(template: str, text: str):
    """The bounds change no result."""
    assert render(template, MESSAGES, tools=None, generate=True, tokens={"eos_token": "</s>"}) == text


def test_a_long_conversation_may_be_collected_message_by_message():
    """1000 messages: a list of them grows in a loop, and a text with it, in less than the time limit."""
    template = (
        "{% set ns = namespace(list=[], text='') %}{% for m in messages %}{% set ns.list = ns.list + [m] %}"
        "{% set ns.text = ns.text ~ '<' ~ m.role ~ '>' ~ m.content ~ '<end>' %}{% endfor %}"
        "{{ ns.list|length }}{{ ns.text }}"
    )
    shapes = tuple(shape_of(Message(role="user", content="hi")) for _ in range(1000))
    start = time.thread_time()
    text = conversation(template).render(shapes, True)
    assert time.thread_time() - start < 3
    assert text.startswith("1000<user>")
    assert text.count("<end>") == 1000


def test_long_white_space_of_a_message_is_read():
    """A message of a million spaces, of which a template reads the ends and parts."""
    template = (
        "{% for m in messages %}{{ (m.content + '<end>').split('<end>')[0].strip() }}{{ m.content|trim }}{% endfor %}"
    )
    shapes = (shape_of(Message(role="user", content=" " * 10**6 + "hi" + "\n" * 10**6)),)
    assert conversation(template).render(shapes, True).count("0c") == 2


def test_a_long_template_is_refused_before_it_is_compiled():
    """Python's compiler cannot be interrupted."""
    with pytest.raises(TooLarge, match=f"the template has {LONGEST_SOURCE + 1} characters"):
        render("x" * (LONGEST_SOURCE + 1), MESSAGES, tools=None, generate=True, tokens={})


def test_the_error_names_the_bound():
    """And the model and the remedy, as for each failure of a template."""
    with pytest.raises(TemplateFailure, match=r"TooLarge: \*\* would .* an integer of more than 256 bits\. Fix"):
        conversation("{{ 2 ** 300 }}").render((shape_of(Message(role="user", content="hi")),), True)
