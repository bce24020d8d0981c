from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from types import ModuleType

import numpy as np
import pytest
import torch
from jsonschema.validators import validator_for  # type: ignore[import-untyped]

from grpo.errors import PolicyError
from grpo.messages import Message
from grpo.policy import reply_ends
from grpo.policy.catalog import load_weights
from grpo.policy.grammars import GrammarError, Grammars
from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.policy.transformers.model import TransformersPolicy
from grpo.policy.transformers.sampling import token_masks
from grpo.policy.transformers.sampling.base import TurnSampler
from grpo.policy.transformers.sampling.catalog import make_sampler, make_serving_sampler
from grpo.policy.transformers.sampling.token_masks import TokenMasks
from grpo.renderers.chat_template import Renderer
from grpo.renderers.reply_grammar import ReplyShape
from tests.places import ROOT

CHOICE = 'start: "yes" | "no"\n'
DIGITS = "start: /[0-9]{3}/\n"


@pytest.fixture(scope="module")
def clerk() -> TransformersPolicy:
    return load_weights("data/models/desk_clerk")


def sampler_of(clerk: TransformersPolicy, *, masks: bool = True) -> TurnSampler:
    sampler = make_serving_sampler(
        clerk.model, stop_ids=[1], concurrency=8, max_context=256, prefill_chunk=8, prefix_cache_bytes=0
    )
    if masks:
        sampler.masks = TokenMasks(Grammars(clerk.tokenizer, [1]))
    return sampler


async def generate(sampler: TurnSampler, ids: list[int], grammar: str | None, **fields: float) -> Generation:
    sampling = Sampling(**{"temperature": 0.7, "max_new_tokens": 12, "seed": 3, "grammar": grammar, **fields})  # type: ignore[arg-type]
    return await sampler.open().generate(Prompt(new_ids=ids), sampling)


def test_log_probabilities_are_those_of_the_tokens_that_the_grammar_allows(clerk: TransformersPolicy):
    """The first token, against a forward pass; the stop token, the only one that is left, has probability 1."""
    ids = clerk.tokenizer("Where is my order 1234?", add_special_tokens=False)["input_ids"]
    generation = asyncio.run(generate(sampler_of(clerk), ids, CHOICE))
    assert clerk.tokenizer.decode(generation.token_ids[:-1]) in ("yes", "no")
    assert generation.token_ids[-1] == 1
    assert generation.stop == "stop"
    allowed = [id_ for id_ in range(len(clerk.tokenizer)) if _begins(clerk.tokenizer.decode([id_]), ("yes", "no"))]
    with torch.inference_mode():
        logits = clerk.model(torch.tensor([ids])).logits[0, -1] / 0.7
    expected = logits[allowed].log_softmax(-1)[allowed.index(generation.token_ids[0])]
    assert generation.logprobs is not None
    assert generation.logprobs[0] == pytest.approx(float(expected), abs=1e-4)
    assert generation.logprobs[-1] == 0.0


def _begins(text: str, texts: tuple[str, ...]) -> bool:
    return text != "" and any(each.startswith(text) for each in texts)


def test_logits_beyond_the_vocabulary_are_excluded(clerk: TransformersPolicy):
    """As of a model with a padded embedding, e.g. Qwen. Two matchers, one row without a grammar between them."""
    masks = TokenMasks(Grammars(clerk.tokenizer, [1]))
    first, second = (masks.grammars.matcher(grammar) for grammar in (CHOICE, DIGITS))
    words = masks.grammars.vocabulary_size
    scores = torch.zeros(3, words + 40)  # more than the 32 to which a mask's width is rounded up
    masks.begin({first: 0, second: 0})
    masks.apply(scores, [first, None, second])
    kept = scores.isfinite()
    assert kept[1].all()
    assert not kept[[0, 2], words:].any()
    assert {clerk.tokenizer.decode([token])[0] for token in kept[0].nonzero().flatten().tolist()} == {"y", "n"}
    assert all(clerk.tokenizer.decode([token]).isdigit() for token in kept[2].nonzero().flatten().tolist())


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.0}, {"top_p": 0.01}])
def test_turns_of_one_batch_have_grammars_of_their_own(clerk: TransformersPolicy, fields: dict[str, float]):
    """Two grammars and none, for the same prompt, also where the likeliest token alone is left."""

    async def together() -> list[Generation]:
        sampler = sampler_of(clerk)
        ids = clerk.tokenizer("Hello", add_special_tokens=False)["input_ids"]
        return await asyncio.gather(
            *(generate(sampler, ids, grammar, **fields) for grammar in (CHOICE, DIGITS, None, CHOICE, DIGITS))
        )

    texts = [clerk.tokenizer.decode(each.token_ids, skip_special_tokens=True) for each in asyncio.run(together())]
    assert {texts[0], texts[3]} <= {"yes", "no"}
    assert all(len(text) == 3 and text.isdigit() for text in (texts[1], texts[4]))
    free = asyncio.run(
        generate(sampler_of(clerk), clerk.tokenizer("Hello", add_special_tokens=False)["input_ids"], None, **fields)
    )
    assert texts[2] == clerk.tokenizer.decode(free.token_ids, skip_special_tokens=True)


def test_a_grammar_that_fails_while_it_is_read_fails_its_own_turn(clerk: TransformersPolicy):
    """A turn after it in the batch gets its tokens."""

    async def together() -> list[Generation | BaseException]:
        sampler, sampling = sampler_of(clerk), Sampling(temperature=0.7, max_new_tokens=12, seed=3, grammar=CHOICE)
        failing, other = (sampler.submit(sampler.open(), Prompt(new_ids=[10, 11]), sampling) for _ in range(2))
        assert failing.matcher is not None
        failing.matcher.consume_token(clerk.tokenizer.convert_tokens_to_ids("7"))  # neither yes nor no
        return await asyncio.gather(failing.future, other.future, return_exceptions=True)

    failure, choice = asyncio.run(together())
    assert isinstance(failure, GrammarError)
    assert "doesn't satisfy the grammar" in str(failure)
    assert isinstance(choice, Generation)
    assert clerk.tokenizer.decode(choice.token_ids, skip_special_tokens=True) in ("yes", "no")


def test_a_faulty_grammar_is_refused_and_a_sampler_of_rollouts_reads_none(clerk: TransformersPolicy):
    with pytest.raises(GrammarError, match="regex parse error"):
        asyncio.run(generate(sampler_of(clerk), [10, 11], "start: /(/\n"))
    with pytest.raises(PolicyError, match="reads no grammar"):
        asyncio.run(generate(sampler_of(clerk, masks=False), [10, 11], CHOICE))
    rollouts = make_sampler(clerk.model, stop_ids=[1], concurrency=2, max_context=64)
    with pytest.raises(PolicyError, match="reads no grammar"):
        asyncio.run(generate(rollouts, [10, 11], CHOICE))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "object", "properties": {"a": {"not": {"type": "string"}}}}, "not"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "string", "format": "zzz"}, "zzz"),
        ({"$ref": "http://127.0.0.1/x"}, "not present"),
        ({"enum": []}, "Unsatisfiable"),
        ({"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(8)]} for i in range(8)]}, "too large"),
    ],
)
def test_a_schema_that_cannot_be_kept_is_refused_with_its_keyword(
    clerk: TransformersPolicy, schema: dict[str, object], reason: str
):
    with pytest.raises(GrammarError, match=reason):
        Grammars(clerk.tokenizer, [1]).compile(f"start: %json {json.dumps(schema)}\n")


def test_replies_are_valid_by_published_schemas(clerk: TransformersPolicy):
    """One reply by each of 20 schemas in one batch; `python -m tests.benchmarks.structured valid` has 1,000 of them."""
    published = json.loads((ROOT / "tests" / "benchmarks" / "schemas.json").read_text(encoding="utf-8"))
    renderer = Renderer(clerk.tokenizer)
    ids = renderer.build_prompt([Message(role="user", content="Hello, where is my order 1234?")])

    async def together() -> list[Generation]:
        sampler = make_serving_sampler(
            clerk.model, stop_ids=[1], concurrency=20, max_context=512, prefill_chunk=64, prefix_cache_bytes=0
        )
        sampler.masks = TokenMasks(Grammars(clerk.tokenizer, [1]))
        grammars = [renderer.reply_grammar(ReplyShape(schema=entry["schema"])) for entry in published]
        return await asyncio.gather(
            *(
                generate(sampler, ids, grammar, max_new_tokens=300, temperature=1.0, completes=True)
                for grammar in grammars
            )
        )

    generations = asyncio.run(together())
    assert len(published) == 20
    for entry, generation in zip(published, generations, strict=True):
        value = json.loads(clerk.tokenizer.decode(generation.token_ids, skip_special_tokens=True))
        assert validator_for(entry["schema"])(entry["schema"]).is_valid(value), entry["name"]
    ends = Counter(generation.stop for generation in generations)
    assert min(ends["stop"], ends["length"]) >= 5, ends  # the model writes some texts without an end


def _completed(clerk: TransformersPolicy, schema: dict[str, object], **fields: float) -> tuple[str, Generation]:
    """Text of a reply that this model does not end by itself, and its generation."""
    grammar = f"start: %json {json.dumps({**schema, 'x-guidance': {'whitespace_flexible': False}})}\n"
    ids = clerk.tokenizer("Where is my order 1234?", add_special_tokens=False)["input_ids"]
    generation = asyncio.run(generate(sampler_of(clerk), ids, grammar, temperature=1.0, completes=True, **fields))
    return clerk.tokenizer.decode(generation.token_ids, skip_special_tokens=True), generation


NOTES = {"type": "object", "properties": {"notes": {"type": "string"}}, "required": ["notes"]}


@pytest.mark.parametrize("limit", [20, 50, 120])
def test_a_text_is_closed_when_the_limit_is_near(clerk: TransformersPolicy, limit: int):
    """The closing quotation mark and brace are the only tokens left, so that their probability is 1.

    The reply ends with `length`, because the model had more to say.
    """
    text, generation = _completed(clerk, NOTES, max_new_tokens=limit)
    assert set(json.loads(text)) == {"notes"}
    assert generation.stop == "length"
    assert limit - 32 <= len(generation.token_ids) <= limit
    assert generation.logprobs is not None
    assert generation.logprobs[-2:] == [0.0, 0.0]
    assert min(generation.logprobs) < 0.0


def test_a_reply_that_fits_its_limit_is_sampled_as_without_one(clerk: TransformersPolicy):
    """The same tokens with a limit of 12 and of 120."""
    ids = clerk.tokenizer("Hello", add_special_tokens=False)["input_ids"]
    short, long = (
        asyncio.run(generate(sampler_of(clerk), ids, DIGITS, max_new_tokens=limit, completes=True))
        for limit in (12, 120)
    )
    assert (short.token_ids, short.stop) == (long.token_ids, "stop")


def test_what_the_schema_requires_is_still_chosen_by_the_model_at_the_limit(clerk: TransformersPolicy):
    """A team after a text without an end: it is sampled, with a probability below 1, and differs between seeds."""
    teams = ["billing", "returns", "delivery"]
    schema = {
        "type": "object",
        "properties": {"why": {"type": "string"}, "team": {"enum": teams}},
        "required": ["why", "team"],
        "additionalProperties": False,
    }
    chosen = Counter()
    for seed in range(12):
        text, generation = _completed(clerk, schema, max_new_tokens=90, seed=seed)
        chosen[json.loads(text)["team"]] += generation.stop == "length"
    assert len(+chosen) > 1, chosen


def test_a_limit_that_no_reply_of_the_schema_fits_cuts_it_off(clerk: TransformersPolicy):
    """Twenty texts need more than 30 tokens."""
    schema = {"type": "array", "items": {"type": "string"}, "minItems": 20}
    text, generation = _completed(clerk, schema, max_new_tokens=30)
    assert (generation.stop, len(generation.token_ids)) == ("length", 30)
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        json.loads(text)


@pytest.mark.parametrize("module", [reply_ends, token_masks])
def test_a_search_that_takes_too_long_is_given_up(
    clerk: TransformersPolicy, monkeypatch: pytest.MonkeyPatch, module: ModuleType
):
    """The reply is cut off, as without a search, and no other turn waits for it."""
    monkeypatch.setattr(module, "_CPU_S", 0.0)
    text, generation = _completed(clerk, NOTES, max_new_tokens=50)
    assert (generation.stop, len(generation.token_ids)) == ("length", 50)
    assert text.startswith('{"notes":"')
    with pytest.raises(ValueError, match="Unterminated"):
        json.loads(text)


@pytest.mark.parametrize(
    ("schema", "end"),
    [
        ({"type": "object"}, "{}"),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, "[1, 1]"),
        ({"type": "string", "pattern": "^[{}]{3}$"}, None),
        ({"type": "string", "minLength": 3}, None),
        ({"type": "string", "format": "email"}, None),
        ({"type": "string", "format": "date-time"}, None),
        ({"type": "string", "format": "uuid"}, None),
        ({"type": "string", "format": "ipv4"}, None),
        *(
            ({"type": "string", "pattern": pattern}, None)
            for pattern in (
                *(r"^\S+@\S+\.\S+$", r"^.+@.+$", r"^[^@]+@[^@]+$", "[0-9]{3}", "[0-9]", "a", "@", r"\d+$"),
                *(
                    r"^ORD-\d{4}$",
                    "^[A-Z]{3}-[0-9]+$",
                    r"^\+?[0-9 ()-]{7,}$",
                    r"^https?://\S+\.\S+$",
                    "^#[0-9a-fA-F]{6}$",
                ),
            )
        ),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, None),
        ({"type": "integer", "minimum": 1000, "maximum": 1007}, None),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, None),
        ({"const": 'a fixed text with { and } and " in it'}, None),
        ({"$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}, None),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_the_end_of_a_reply_is_valid_by_its_schema(
    clerk: TransformersPolicy, schema: dict[str, object], end: str | None
):
    """From the beginning of the reply, with the project's own grammar."""
    grammars = Grammars(clerk.tokenizer, [1])
    matcher = grammars.matcher(Renderer(clerk.tokenizer).reply_grammar(ReplyShape(schema=schema)))
    tokens = grammars.ends.tokens(matcher, at_most=200)
    assert tokens is not None
    assert grammars.ends.tokens(matcher, at_most=len(tokens) - 1) is None
    text = clerk.tokenizer.decode(tokens)
    checks = validator_for(schema)
    assert checks(schema, format_checker=checks.FORMAT_CHECKER).is_valid(json.loads(text)), text
    assert end is None or text == end


def test_the_end_of_a_call_has_the_marks_of_the_template(clerk: TransformersPolicy):
    """From the middle of its arguments to the control token that ends the call."""
    renderer = Renderer(clerk.tokenizer)
    calls = {"refund": {"type": "object", "properties": {"why": {"type": "string"}}, "required": ["why"]}}
    grammars = Grammars(clerk.tokenizer, [1])
    matcher = grammars.matcher(renderer.reply_grammar(ReplyShape(has_text=False, calls=calls)))
    begun = clerk.tokenizer('<tool_call>{"name": "refund", "arguments": {"why": "it is', add_special_tokens=False)
    assert matcher.consume_tokens(begun["input_ids"])
    tokens = grammars.ends.tokens(matcher, at_most=20)
    assert tokens is not None
    assert clerk.tokenizer.decode(tokens) == '"}}</tool_call>'


def test_the_ends_of_a_batch_share_one_budget_of_time_per_pass(clerk: TransformersPolicy):
    """64 lists of 40 items near their limit: if each is searched for its own time, 10 passes take more than 2 s.

    30 ms are added in 10 passes, 20 ms are there before, and the last search may take 40 ms more. The rest are masks.
    """
    schema = {"type": "array", "minItems": 40, "maxItems": 40, "items": {"enum": [f"a{n}" for n in range(10)]}}
    grammar = Renderer(clerk.tokenizer).reply_grammar(ReplyShape(schema=schema))
    masks = TokenMasks(Grammars(clerk.tokenizer, [1]))
    turns = {masks.grammars.matcher(grammar): 200 for _ in range(64)}
    scores = torch.zeros(64, masks.grammars.vocabulary_size)
    assert masks.grammars.ends
    began = masks._thread.submit(time.thread_time).result()
    for _ in range(10):
        masks.begin(turns)
        masks.apply(scores.clone(), list(turns))
        for matcher in turns:
            masks.read(matcher, int(np.flatnonzero(~masks._excluded[matcher])[0]))
            turns[matcher] -= 1
    assert masks._thread.submit(time.thread_time).result() - began < 0.25


def test_the_turn_that_has_used_the_least_time_is_searched_next(clerk: TransformersPolicy):
    """30 lists are near their limit and due in each pass; another turn after them in the batch gets its search."""
    schema = {"type": "array", "minItems": 40, "maxItems": 40, "items": {"enum": [f"a{n}" for n in range(10)]}}
    renderer, masks = Renderer(clerk.tokenizer), TokenMasks(Grammars(clerk.tokenizer, [1]))
    lists, notes = (masks.grammars.matcher(renderer.reply_grammar(ReplyShape(schema=each))) for each in (schema, NOTES))
    turns = {**{lists.deep_copy(): 200 for _ in range(30)}, notes: 200}
    for _ in range(30):
        masks.begin(turns)
        masks.apply(torch.zeros(31, masks.grammars.vocabulary_size), list(turns))
        for matcher in turns:
            masks.read(matcher, int(np.flatnonzero(~masks._excluded[matcher])[0]))
            turns[matcher] -= 1
    assert masks._ends[notes].cpu_s > 0


def test_compiled_grammars_are_dropped_before_they_take_too_much_memory(clerk: TransformersPolicy):
    """Each is counted as the largest that a server accepts, with its states: 512 MiB hold 8 of 24 + 40 MiB."""
    grammars = Grammars(clerk.tokenizer, [1])
    texts = [f'start: "{number}"\n' for number in range(9)]
    for text in texts:
        grammars.compile(text)
    assert [grammars.is_compiled(text) for text in texts] == [False, *[True] * 8]
