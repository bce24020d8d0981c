"""Structured output of a real server: replies that are valid by published schemas, and its cost at 64 streams.

python -m tests.benchmarks.structured      1,000 replies over 20 schemas, then the ratio of tokens a second
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jsonschema.validators import validator_for  # type: ignore[import-untyped]

from grpo.config.serving import EngineSettings
from grpo.messages import Message
from grpo.policy.catalog import load_weights
from grpo.policy.grammars import Grammars
from grpo.policy.policy import Prompt, Sampling
from grpo.policy.transformers.sampling.base import TurnSampler
from grpo.policy.transformers.sampling.catalog import make_serving_sampler
from grpo.policy.transformers.sampling.token_masks import TokenMasks
from grpo.renderers.chat_template import Renderer
from grpo.renderers.reply_grammar import ReplyShape
from grpo.serving.engine.versions import ServedModel
from tests.grpo.serving.chat_servers import CLERK, ChatServer, chat_server, clerk

SCHEMAS = Path("tests/benchmarks/schemas.json")
"""Published schemas: examples of json-schema.org, of OpenAI's guides and of well-known specifications, with sources."""
REPLIES = 1000
STREAMS, ROUNDS, TOKENS = 64, 7, 60
LONG = {"type": "array", "items": {"type": "string", "minLength": 4, "maxLength": 12}, "minItems": 60, "maxItems": 80}


def next_version(current: str) -> ServedModel | None:
    """The shipped clerk."""
    return None if current else replace(clerk(), max_new_tokens=900)


def ask(server: ChatServer, schema: dict[str, Any] | None, **fields: Any) -> Any:
    """A reply, constrained where there is a schema."""
    form = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
    return server.client().chat.completions.create(
        model="clerk",
        messages=[{"role": "user", "content": "Hello, where is my order 1234?"}],
        **({} if schema is None else {"response_format": form}),
        **fields,
    )


def check(server: ChatServer) -> None:
    """Count the replies that are valid, those among them that their limit has ended, and those that are not valid."""
    published = json.loads(SCHEMAS.read_text(encoding="utf-8"))
    counts: Counter[str] = Counter()

    def one(number: int) -> None:
        entry = published[number % len(published)]
        choice = ask(server, entry["schema"], seed=number).choices[0]
        kind = validator_for(entry["schema"])
        try:
            valid = kind(entry["schema"]).is_valid(json.loads(choice.message.content))
        except ValueError:  # it was cut off
            valid = False
        end = "completed at its limit" if choice.finish_reason == "length" else "ended by the model"
        counts[f"{'valid' if valid else 'not valid: ' + entry['name']}, {end}"] += 1

    for entry in published:  # a server lets few schemas wait to be compiled
        ask(server, entry["schema"], max_tokens=1)
    started = time.perf_counter()
    with ThreadPoolExecutor(32) as threads:
        list(threads.map(one, range(REPLIES)))
    print(f"{REPLIES} replies, {len(published)} schemas, {time.perf_counter() - started:.0f} s: {dict(counts)}")


async def rate(sampler: TurnSampler, prompt: list[int], grammar: str | None, seed: int) -> tuple[float, float]:
    """Tokens a second of 64 turns at once, and tokens for each second that all cores work on them."""

    async def turn(number: int) -> int:
        session = sampler.open()
        sampling = Sampling(temperature=1.0, max_new_tokens=TOKENS, seed=seed + number, grammar=grammar)
        generation = await session.generate(Prompt(new_ids=prompt), sampling)
        session.close()
        return len(generation.token_ids)

    started, worked = time.perf_counter(), time.process_time()
    tokens = await asyncio.gather(*map(turn, range(STREAMS)))
    return sum(tokens) / (time.perf_counter() - started), sum(tokens) / (time.process_time() - worked)


async def compare() -> None:
    """Free and constrained rounds in turn in the sampler of an engine, whose free turns do not stop either.

    Masks are computed during the forward pass. If another core is free, the ratio of tokens a second shows what is
    left of their cost, and where all cores have other work that of the cores' own time: it does not depend on the load.
    What the server adds is the same for both, so that its ratio is nearer to 1.
    """
    policy = load_weights(str(CLERK))
    renderer = Renderer(policy.tokenizer)
    prompt = renderer.build_prompt([Message(role="user", content="Hello, where is my order 1234?")])
    grammar = renderer.reply_grammar(ReplyShape(schema=LONG))
    samplers = {}
    for name, stop_ids in (("free", []), ("constrained", [renderer.stop_id])):
        samplers[name] = make_serving_sampler(
            policy.model,
            stop_ids=stop_ids,
            concurrency=STREAMS,
            max_context=512,
            prefill_chunk=64,
            prefix_cache_bytes=0,
        )
    samplers["constrained"].masks = TokenMasks(Grammars(policy.tokenizer, [renderer.stop_id]))
    rates: dict[str, list[tuple[float, float]]] = {"free": [], "constrained": []}
    for number in range(ROUNDS + 1):
        for name, sampler in samplers.items():
            measured = await rate(sampler, prompt, grammar if name == "constrained" else None, 1000 * number)
            if number:
                rates[name].append(measured)
    for column, unit in enumerate(("tokens/s", "tokens for a second of a core's work")):
        free, constrained = (
            statistics.median(measured[column] for measured in rates[name]) for name in ("free", "constrained")
        )
        print(f"64 streams: free {free:.0f} {unit}, constrained {constrained:.0f}, ratio {constrained / free:.3f}")


def main(parts: list[str]) -> None:
    """Print both results, or the part that is named."""
    with tempfile.TemporaryDirectory() as folder:
        engine = EngineSettings(concurrency=STREAMS)
        with chat_server(Path(folder), next_version, engine=engine) as server:
            server.client()
            if "cost" not in parts:
                check(server)
    if "valid" not in parts:
        torch.set_num_threads(1)
        asyncio.run(compare())


if __name__ == "__main__":
    main(sys.argv[1:])
