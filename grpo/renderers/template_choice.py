"""Choice of the template that conversations are rendered with, starting from the tokenizer's template.

    the template itself                if it is prefix-preserving and renders all parts of a conversation
    its training variant               TRL's, for the templates that TRL knows
    with one of its own switches       that keeps the reasoning of earlier turns
    with forms for what it leaves out  see `grpo.renderers.template_patches`

If no variant is prefix-preserving, the template is refused, unless its first line is `{#- turns as generated #}`. With
that line earlier turns stay in the context as they were generated, even if the template renders them in another way.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.errors import PolicyError
from grpo.messages import END_OF_THINK, THINK, Tool
from grpo.renderers.dates import check_date, without_date
from grpo.renderers.encoding import any_of
from grpo.renderers.missing_parts import missing_parts, opens_after_result, states_tools
from grpo.renderers.placeholders import CallShape, MessageShape, common_prefix, slots_in
from grpo.renderers.reply_format import EXAMPLE, Render, ReplyFormat, example_call, read_format
from grpo.renderers.template import ChatTemplate, TemplateFailure
from grpo.renderers.template_patches import HERMES, Form, with_forms
from grpo.renderers.trial import unread_call, unread_reply
from grpo.renderers.turn_boundaries import (
    CALL,
    REPLY,
    RESULT,
    USER,
    Ends,
    end_of_turn,
    prefix_fault,
    reply_renderer,
    sample_conversations,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

AS_GENERATED = "{#- turns as generated #}"
FOR_TOOLS = "{%- if tools %}{#- template for tools #}"
"""Beginning of a template that was joined from a template for conversations with tools and one without tools."""
_KEEPING = ("preserve_thinking = true", "clear_thinking = false", "truncate_history_thinking = false")
"""Switches that make templates keep the reasoning of earlier turns."""
_REASONING = {
    "enable_thinking = false": "no reasoning",
    "thinking = false": "no reasoning",
    "enable_thinking = true": "reasoning in each turn",
}
"""Switches that turn reasoning in templates off or on."""
_WITHOUT_TOOLS = "{%- set tools = tools or [] %}"
"""First line for a template that lists its tools also where there are none."""
_SWITCHES = re.compile(r"(?:\{%- set \w+ = \w+ %\}\n?)*")
_INSIDE = 'a\n\n b\r\n\t"c"  it\'s <d> & \\ é'
"""Text with characters inside that some templates change."""
_TWO_CALLS = replace(CALL, calls=CALL.calls * 2)
_CALL_WITH_CONTENT = replace(CALL, filled=True)
_TYPED_CALL = replace(CALL, calls=(CallShape('{"a": 1, "b": [true, "\\u00000"], "c": {"d": null, "e": 0.5}}'),))
_DESCRIBED = Tool(
    name="described",
    description="Does something.",
    parameters={
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "A number.", "enum": [1, 2]},
            "c": {"type": "object", "properties": {"d": {"type": ["string", "null"]}}},
        },
        "required": ["a"],
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A chat template with the ends of its turns, its reply format and its faults."""

    source: str
    forms: frozenset[Form]
    ends: Ends
    format: ReplyFormat
    begun: bool
    """A prompt opens the reasoning of the reply."""
    fault: str | None
    """Reason why the template is not prefix-preserving, or does not read its replies back."""
    tool_fault: str | None
    """Reason for the same fault with tool calls."""
    reasons: bool
    """Replies have reasoning, which the template renders."""
    as_generated: bool
    content_with_calls: bool
    """A turn may have both content and calls."""
    most_calls: int
    unparsed_as_call: bool
    """A result is rendered, and the conversation goes on, only after a call."""


@dataclass(frozen=True, slots=True)
class _Request:
    source: str
    special_tokens: str
    controls: frozenset[str]
    declared: frozenset[str]
    tokenizer: PreTrainedTokenizerBase = field(compare=False)


def find_variant(tokenizer: PreTrainedTokenizerBase, controls: frozenset[str], declared: frozenset[str]) -> Variant:
    """Variant of the tokenizer's template. `declared` are the texts of its end tokens.

    Raises `PolicyError` if the template fails on a conversation of a user and an assistant.
    """
    special_tokens = str(sorted(tokenizer.special_tokens_map.items()))
    return _find(_Request(source_of(tokenizer), special_tokens, controls, declared, tokenizer))


@lru_cache(maxsize=8)
def _find(request: _Request) -> Variant:
    """Variant of a template. If a comment fixes its date, a statement that does the same replaces the comment."""
    undated, statement = without_date(ChatTemplate(request.tokenizer, request.source))
    variant = _choose(replace(request, source=undated), prefix=statement)
    return replace(variant, source=statement + variant.source)


def _choose(request: _Request, prefix: str = "") -> Variant:
    source, controls, declared = request.source, request.controls, request.declared
    template = ChatTemplate(request.tokenizer, source, (EXAMPLE,) if FOR_TOOLS in source else ())
    check_date(template.with_source(prefix + source))
    _check_without_tools(template)
    parts = template.with_source(with_forms(source, frozenset({"parts"})))
    basic = parts if not template.renders(USER, keys=("0c",)) and parts.renders(USER, keys=("0c",)) else template
    for shapes in ((USER,), (USER, REPLY, USER)):
        keys = {slot.key for slot in slots_in(basic.render(shapes, True))}
        if not keys:
            raise template.failure("prints no message")
        if keys != {f"{index}c" for index in range(len(shapes))}:
            raise template.failure("is not prefix-preserving: it leaves out earlier messages")
    if not basic.keeps(_INSIDE, USER):
        raise template.failure(
            "changes the inside of a user's text, so that the tokens would differ from the tokens of the text"
        )
    pattern = any_of(controls)
    variants: list[Variant] = []
    for candidate in _candidates(template):
        variant = _complete(template.with_source(candidate), pattern, declared)
        if variant.as_generated or _passes(variant):
            return variant
        variants.append(variant)
    return next((variant for variant in variants if variant.fault is None), variants[0])


def _check_without_tools(template: ChatTemplate) -> None:
    """Raise `PolicyError` with the line to add if the template fails only because it gets no tools."""
    try:
        template.render((USER,), True)
    except TemplateFailure as failure:
        try:
            template.with_source(_WITHOUT_TOOLS + template.source).render((USER,), True)
        except TemplateFailure:
            return  # for another reason, which the next rendering shows
        fault = f"fails without tools, because it lists them. Begin it with {_WITHOUT_TOOLS}"
        raise template.failure(fault) from failure


def remedies(source: str) -> dict[str, str]:
    """First lines that may make a template usable although it is not prefix-preserving, with the effect of each."""
    lines = {
        _set(switch).strip(): effect for switch, effect in _REASONING.items() if switch.partition(" ")[0] in source
    }
    return lines | {AS_GENERATED: "earlier turns stay as they were generated"}


def source_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """Chat template of a tokenizer. Raises `PolicyError` if it has none.

    If there are several, transformers takes `tool_use` if there are tools, and `default` otherwise. They are joined
    into one template that does the same.
    """
    template = tokenizer.chat_template
    if isinstance(template, dict):
        default, for_tools = (template.get(name, "").removesuffix("\n") for name in ("default", "tool_use"))
        both = f"{FOR_TOOLS}{for_tools}{{% else %}}{default}{{% endif %}}"
        template = both if default and for_tools else default or for_tools
    if not template:
        raise PolicyError(
            f"tokenizer of {tokenizer.name_or_path!r} has no chat template. "
            "Add chat_template.jinja to the model folder or set policy.chat_template"
        )
    return str(template)


def _candidates(template: ChatTemplate) -> Iterator[str]:
    source = template.source
    yield source
    training = _training_template(template)
    if training is not None:
        yield training
    for switch in _KEEPING:
        if switch.partition(" ")[0] in source:
            yield _set(switch) + source


def _training_template(template: ChatTemplate) -> str | None:
    """TRL's training variant of a template that TRL ships, with the template's leading switches kept in front.

    If another release of a template renders the same conversations, it gets the same variant. The function compares the
    files itself instead of with `trl.chat_template_utils`, because importing that takes seconds.
    """
    switches = _SWITCHES.match(template.source)
    assert switches is not None
    published = template.source[switches.end() :]
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    training = {
        path.with_name(path.name.replace("_training", "")): path
        for path in sorted((Path(spec.origin).parent / "chat_templates").glob("*_training.jinja"))
    }
    originals = {path: path.read_text(encoding="utf-8") for path in training if path.is_file()}
    same = [path for path, source in originals.items() if source == published] or [
        path
        for path, source in originals.items()
        if _renders_alike(template, template.with_source(switches[0] + source))
    ]
    return switches[0] + training[same[0]].read_text(encoding="utf-8") if same else None


def _renders_alike(first: ChatTemplate, second: ChatTemplate) -> bool:
    """Check that two templates render conversations and prompts alike, with and without tools and reasoning."""

    def rendered(template: ChatTemplate, shapes: tuple[MessageShape, ...], *, generate: bool) -> str | None:
        try:
            return template.render(shapes, generate)
        except TemplateFailure:
            return None

    calls = [(USER, call, RESULT, RESULT, REPLY, USER) for call in (_TWO_CALLS, _CALL_WITH_CONTENT, _TYPED_CALL)]
    for tools in ((), (EXAMPLE,), (_DESCRIBED, EXAMPLE)):
        pair = first.with_tools(tools), second.with_tools(tools)
        for reasoning in (False, True):
            conversations = sample_conversations(tools=bool(tools), reasoning=reasoning)
            for conversation in [*conversations, *(calls if tools else [])]:
                for length in range(1, len(conversation) + 1):
                    for generate in (False, True):
                        texts = {rendered(template, conversation[:length], generate=generate) for template in pair}
                        if len(texts) > 1:
                            return False
    return True


def _set(switch: str) -> str:
    return f"{{%- set {switch} %}}\n"


def _passes(variant: Variant) -> bool:
    return variant.fault is None and variant.tool_fault is None


def _complete(template: ChatTemplate, controls: re.Pattern[str], declared: frozenset[str]) -> Variant:
    """Variant with forms for the parts that the template leaves out."""
    given = template
    template, forms = missing_parts(given)
    variant = _inspect(template, forms, controls, declared)
    render = _reply_renderer(template, variant)
    example = HERMES
    if "calls" not in forms and _unread_call(variant, render) is not None:
        template, forms = missing_parts(given, frozenset({"tools", "calls"}))
    elif "calls" not in forms and not states_tools(template):
        example = example_call(variant.format, render)
        template, forms = missing_parts(given, frozenset({"tools"}), example=example)
    if "tools" in forms:
        variant = _inspect(template, forms, controls, declared)
    if variant.begun and "results" not in forms and not opens_after_result(template):
        template, forms = missing_parts(given, forms | {"results"}, example=example)
        variant = _inspect(template, forms, controls, declared)
    if variant.fault is not None and variant.begun:
        opening = THINK + template.render((USER,), True).rpartition(THINK)[2]
        forms |= {"reasoning"}
        inlined = given.with_source(with_forms(given.source, forms, opening=opening, example=example))
        other = _inspect(inlined, forms, controls, declared)
        if other.fault is None:
            return _tried(other, inlined)
    return _tried(variant, template)


def _tried(variant: Variant, template: ChatTemplate) -> Variant:
    """Variant with a fault added if it does not read back a kind of turn that the template renders."""
    render = _reply_renderer(template, variant)
    kinds = [unread_reply(variant.format, render, reasons=variant.reasons, begun=variant.begun), None]
    kinds[1] = kinds[0] or _unread_call(variant, render)
    faults = [
        None if kind is None else str(template.failure(f"renders {kind} in a form that is not read back"))
        for kind in kinds
    ]
    return replace(variant, fault=variant.fault or faults[0], tool_fault=variant.tool_fault or faults[1])


def _unread_call(variant: Variant, render: Render) -> str | None:
    return unread_call(
        variant.format,
        render,
        reasons=variant.reasons,
        begun=variant.begun,
        with_content=variant.content_with_calls,
        most_calls=variant.most_calls,
    )


def _reply_renderer(template: ChatTemplate, variant: Variant) -> Render:
    return reply_renderer(template, variant.ends, variant.format.reasoning or (THINK, END_OF_THINK))


def _inspect(
    template: ChatTemplate, forms: frozenset[Form], controls: re.Pattern[str], declared: frozenset[str]
) -> Variant:
    """Ends of turns, format of replies and prefix property of a complete template."""
    reply_end = end_of_turn(template, REPLY, USER, controls=controls, declared=declared)
    try:
        call_end = end_of_turn(
            template, CALL, RESULT, controls=controls, declared=declared | {reply_end.text or ""},
            borrowing=reply_end.borrowed or reply_end.text is None,
        )  # fmt: skip
    except (TemplateFailure, ValueError):
        call_end = reply_end
    ends = Ends(reply=reply_end, call=call_end)
    prompt = template.render((USER,), True)
    prompt = prompt[len(common_prefix(prompt, template.render((USER,), False))) :]
    reply_format = read_format(reply_renderer(template, ends), prompt)
    begun = reply_format.reasoning is not None and prompt.rstrip().endswith(reply_format.reasoning[0])
    reasons = not prompt.rstrip().endswith(END_OF_THINK) and _reasons(template)
    as_generated = AS_GENERATED in template.source
    fault = tool_fault = None
    if not as_generated:
        modes = ([True] if begun else [False, True]) if reasons else [False]
        fault = prefix_fault(template.with_tools(()), ends, tools=False, reasoning=modes)
        tool_fault = prefix_fault(template.with_tools((EXAMPLE,)), ends, tools=True, reasoning=modes)
    results = (USER, CALL, RESULT)
    if tool_fault is None and template.renders(*results, keys=("2c",)) and not template.keeps(_INSIDE, *results):
        fault_of_results = (
            "changes the inside of a tool's result, so that the tokens would differ from the tokens of the result"
        )
        tool_fault = str(template.failure(fault_of_results))
    call_with_content = replace(_CALL_WITH_CONTENT, reasoning=reasons)
    is_marked = reply_format.calls is None or not reply_format.calls.marks.bare  # without a mark a reply is only calls
    both = is_marked and template.renders(USER, call_with_content, RESULT, keys=("1c", "1n0", "2c"))
    if both:
        rendered = template.render((USER, call_with_content, RESULT), True)
        last = [slot for slot in slots_in(rendered) if slot.message == 1]
        both = last[-1].key != "1c"
    return Variant(
        source=template.source,
        forms=forms,
        ends=ends,
        format=reply_format,
        begun=begun,
        fault=fault,
        tool_fault=tool_fault,
        reasons=reasons,
        as_generated=as_generated,
        content_with_calls=both,
        most_calls=8 if template.renders(USER, _TWO_CALLS, RESULT, keys=("1n0", "1n1", "2c")) else 1,
        unparsed_as_call=not template.renders(USER, REPLY, RESULT, REPLY, USER, REPLY, keys=("2c", "3c", "4c")),
    )


def _reasons(template: ChatTemplate) -> bool:
    """True if replies have reasoning without a switch that turns it on."""
    turns = (replace(REPLY, reasoning=True), replace(CALL, reasoning=True))  # some families reason only before calls
    if not any(template.renders(USER, turn, keys=("1r",)) for turn in turns):
        return False
    if "enable_thinking" not in template.source:
        return True
    texts = []
    for source in (
        template.source,
        *(f"{_set(f'enable_thinking = {value}')}{template.source}" for value in ("true", "false")),
    ):
        try:
            texts.append(template.with_source(source).render((USER,), True))
        except TemplateFailure:
            return True
    default, on, off = texts
    return default == on or default != off
