from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from grpo.messages import Tool
from grpo.policy.grammars import Grammars
from grpo.renderers.reply_format import HERMES, ReplyFormat
from grpo.renderers.reply_grammar import ANY_OBJECT, NoGrammar, ReplyShape, reply_grammar
from grpo.renderers.tool_formats import JsonCalls, Marks, NamedCalls, TaggedCalls, ToolFormat

STOP = 1
LOOK_UP = {
    "type": "object",
    "properties": {
        "order": {"type": "string"},
        "count": {"type": "integer"},
        "kind": {"type": "string", "enum": ["a"]},
    },
    "required": ["order"],
    "additionalProperties": False,
}
TOOLS = (Tool(name="look_up", parameters=LOOK_UP), Tool(name="pay", parameters=ANY_OBJECT))
CALLS = {"look_up": LOOK_UP, "pay": ANY_OBJECT}
ARGUMENTS = '{"order": "1"}'


def form_of(calls: ToolFormat, reasoning: tuple[str, str] | None = None) -> ReplyFormat:
    return ReplyFormat(reasoning=reasoning, around=("", ""), calls=calls)


LISTED = JsonCalls(
    Marks(opening="[TOOL_CALLS] ", between=None, closing=""), name="name", arguments="arguments", listed=True
)
BARE = JsonCalls(Marks(opening="", between=None, closing=""), name="name", arguments="parameters")
SPACED = JsonCalls(Marks(opening="<fn>\n", between=None, closing="\n</fn>"), name="name", arguments="arguments")
NAMED = NamedCalls(Marks(opening="<|plugin|>", between=None, closing="<|eop|>"), separator="\n")
TAGGED = TaggedCalls(
    Marks(opening="<fc>\n<function=", between=None, closing="</function>\n</fc>"),
    separator=">\n",
    key="<parameter=",
    value=">\n",
    end="\n</parameter>\n",
    quoted=False,
)
FORMS = {
    "control tokens": (HERMES, 'Sure. <tool_call>{"name": "look_up", "arguments": {"order": "1"}}</tool_call>'),
    "a list": (form_of(LISTED), 'Hi [TOOL_CALLS] [{"name": "look_up", "arguments": {"order": "1"}}]'),
    "no mark": (form_of(BARE), '{"name": "look_up", "parameters": {"order": "1"}}'),
    "reasoning": (
        form_of(SPACED, ("<think>", "</think>")),
        '<think>a b</think>\n\nok <fn>\n{"name": "look_up", "arguments": {"order": "1"}}\n</fn>',
    ),
    "a name first": (form_of(NAMED), f"x<|plugin|>look_up\n{ARGUMENTS}<|eop|>"),
    "tags": (
        form_of(TAGGED),
        "x <fc>\n<function=look_up>\n<parameter=order>\n1\n</parameter>\n</function>\n</fc>",
    ),
}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained("data/models/desk_clerk")


@pytest.fixture(scope="module")
def grammars(tokenizer: PreTrainedTokenizerBase) -> Grammars:
    return Grammars(tokenizer, [STOP])


def drawn(grammars: Grammars, tokenizer: PreTrainedTokenizerBase, grammar: str, seed: int) -> str | None:
    """A reply of random tokens that the grammar allows; None for one that has no end in 200."""
    matcher, ids, random_numbers = grammars.matcher(grammar), list[int](), random.Random(seed)
    while len(ids) < 200:
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits[: len(tokenizer)]).tolist()
        assert allowed, matcher.get_error()
        token = STOP if STOP in allowed and random_numbers.random() < 0.3 else random_numbers.choice(allowed)
        if token == STOP:
            return str(tokenizer.decode(ids))
        matcher.consume_token(token)
        ids.append(token)
    return None


@pytest.mark.parametrize("name", sorted(FORMS))
def test_a_call_as_its_family_writes_it_is_allowed(grammars: Grammars, tokenizer: PreTrainedTokenizerBase, name: str):
    """After text, where calls are free; the arguments are read back."""
    form, text = FORMS[name]
    grammar = reply_grammar(form, ReplyShape(calls=CALLS), tokenizer, reasons=form.reasoning is not None, begun=False)
    matcher = grammars.matcher(grammar)
    assert matcher.consume_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert matcher.is_accepting()
    assert [dict(call.arguments) for call in form.parse(text, TOOLS).tool_calls] == [{"order": "1"}]


@pytest.mark.parametrize("name", sorted(FORMS))
def test_replies_of_random_tokens_are_calls_of_the_tools_with_valid_arguments(
    grammars: Grammars, tokenizer: PreTrainedTokenizerBase, name: str
):
    """Where a call is required, none is text; where one call is allowed, none has two; free text has no other call."""
    form, _ = FORMS[name]
    reasons = form.reasoning is not None
    required = reply_grammar(
        form, ReplyShape(calls=CALLS, has_text=False, one_call=True), tokenizer, reasons=reasons, begun=False
    )
    free = reply_grammar(form, ReplyShape(calls=CALLS), tokenizer, reasons=reasons, begun=False)
    for seed in range(12):
        text = drawn(grammars, tokenizer, required, seed)
        if text is not None:
            message = form.parse(text, TOOLS)
            assert message.malformed is None, text
            (call,) = message.tool_calls
            assert call.name in CALLS
            assert call.name != "look_up" or "order" in call.arguments
        text = drawn(grammars, tokenizer, free, seed)
        if text is not None:
            message = form.parse(text, TOOLS)
            assert message.malformed is None, text
            assert {call.name for call in message.tool_calls} <= CALLS.keys()


def test_a_schema_is_written_as_python_writes_json(grammars: Grammars, tokenizer: PreTrainedTokenizerBase):
    """No room for white space without an end, nor for a number that no reader takes for one."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "string"}},
        "required": ["a", "b"],
    }
    grammar = reply_grammar(HERMES, ReplyShape(schema=schema), tokenizer, reasons=False, begun=False)

    def allows(text: str) -> bool:
        matcher = grammars.matcher(grammar)
        taken = matcher.consume_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])
        return bool(taken and matcher.is_accepting())

    assert allows(json.dumps({"a": 1.5, "b": "x"}))
    assert not allows('{"a": 1.5,  "b": "x"}')
    assert not allows('{"a": 1e999, "b": "x"}')
    assert not allows('{"b": "x", "a": 1.5}')
    assert not allows('{"a": 1.5, "b": "x", "c": 1}')


def test_a_bound_that_excludes_0_keeps_the_other_bound(grammars: Grammars, tokenizer: PreTrainedTokenizerBase):
    """llguidance allows 0 for bounds that are less than 1 apart."""
    number = {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}
    grammar = reply_grammar(HERMES, ReplyShape(schema=number), tokenizer, reasons=False, begun=False)

    def allows(text: str) -> bool:
        matcher = grammars.matcher(grammar)
        taken = matcher.consume_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])
        return bool(taken and matcher.is_accepting())

    assert [text for text in ("0", "0.0", "0.4", "0.5", "0.6", "-0.4") if allows(text)] == ["0.4", "0.5"]


def test_the_header_of_a_reply_follows_its_reasoning(grammars: Grammars, tokenizer: PreTrainedTokenizerBase):
    """Some families write one between the reasoning and the call."""
    form = replace(form_of(SPACED, ("<think>", "</think>")), header="<answer>")
    shape = ReplyShape(calls=CALLS, has_text=False)
    grammar = reply_grammar(form, shape, tokenizer, reasons=True, begun=False)
    call = f'<fn>\n{{"name": "look_up", "arguments": {ARGUMENTS}}}\n</fn>'
    allowed = []
    for text in (f"<think>a b</think>\n\n<answer>{call}", f"<think>a b</think>\n\n{call}"):
        matcher = grammars.matcher(grammar)
        taken = matcher.consume_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])
        allowed.append(bool(taken and matcher.is_accepting()))
    assert allowed == [True, False]


def test_words_about_a_text_are_no_keywords_that_calls_cannot_keep(tokenizer: PreTrainedTokenizerBase):
    described = {"type": "string", "title": "Order", "description": "Its number", "default": "1"}
    schema = {"type": "object", "properties": {"order": described}, "required": ["order"]}
    assert reply_grammar(form_of(TAGGED), ReplyShape(calls={"look_up": schema}), tokenizer, reasons=False, begun=False)


def test_a_schema_cannot_set_options_of_the_library(grammars: Grammars, tokenizer: PreTrainedTokenizerBase):
    """`lenient` would drop keywords that cannot be kept."""
    lenient = {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}
    grammar = reply_grammar(HERMES, ReplyShape(schema=lenient), tokenizer, reasons=False, begun=False)
    with pytest.raises(Exception, match="uniqueItems"):
        grammars.compile(grammar)


def test_calls_in_a_form_without_a_grammar_are_refused(tokenizer: PreTrainedTokenizerBase):
    channels = ReplyFormat(reasoning=None, around=("", ""), calls=None, channels=True)
    with pytest.raises(NoGrammar, match="channels"):
        reply_grammar(channels, ReplyShape(calls=CALLS), tokenizer, reasons=True, begun=False)
    longer = {"type": "object", "properties": {"a": {"type": "string", "minLength": 3}}, "required": ["a"]}
    with pytest.raises(NoGrammar, match="minLength"):
        reply_grammar(form_of(TAGGED), ReplyShape(calls={"f": longer}), tokenizer, reasons=False, begun=False)
