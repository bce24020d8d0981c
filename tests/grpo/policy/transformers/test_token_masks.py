from __future__ import annotations

import asyncio
import json

import pytest
import torch
from jsonschema.validators import validator_for  # type: ignore[import-untyped]

from grpo.errors import PolicyError
from grpo.messages import Message
from grpo.policy.catalog import load_weights
from grpo.policy.grammars import GrammarError, Grammars
from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.policy.transformers.model import TransformersPolicy
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


def test_a_faulty_grammar_fails_its_own_turn_and_a_sampler_of_rollouts_reads_none(clerk: TransformersPolicy):
    with pytest.raises(GrammarError):
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
            *(generate(sampler, ids, grammar, max_new_tokens=300, temperature=1.0) for grammar in grammars)
        )

    generations = asyncio.run(together())
    whole = 0
    for entry, generation in zip(published, generations, strict=True):
        if generation.stop == "stop":
            whole += 1
            value = json.loads(clerk.tokenizer.decode(generation.token_ids[:-1]))
            assert validator_for(entry["schema"])(entry["schema"]).is_valid(value), entry["name"]
    assert len(published) == 20
    assert whole >= 5  # the others are cut within a text of their own length
