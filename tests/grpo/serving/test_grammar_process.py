"""Memory of the grammars that a server accepts from its clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from transformers import AutoTokenizer

from grpo.renderers.chat_template import Renderer
from grpo.renderers.reply_grammar import ReplyShape
from grpo.serving.requests.grammar_process import GrammarProcess
from tests.places import ROOT

CLERK = ROOT / "data" / "models" / "desk_clerk"


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(AutoTokenizer.from_pretrained(str(CLERK)))


@pytest.fixture
def process(renderer: Renderer) -> Iterator[GrammarProcess]:
    process = GrammarProcess(renderer.tokenizer, renderer.stop_ids, compile_s=60.0)
    yield process
    process.close()


def grammar(renderer: Renderer, schema: dict[str, Any]) -> str:
    return renderer.reply_grammar(ReplyShape(schema=schema))


def test_a_small_schema_with_a_large_grammar_is_refused(renderer: Renderer, process: GrammarProcess):
    """Multiples of a large number have a state per remainder, about 65 MiB of them."""
    trial = process.compile(grammar(renderer, {"type": "integer", "multipleOf": 123457}))
    assert trial.reason == "to compile it takes more than 24 MiB of memory. Send a smaller one"


ORDINARY: list[dict[str, Any]] = [
    {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20)}, "required": ["p0", "p19"]},
    {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(500)}, "required": ["p0"]},
    {"enum": [f"value {n}" for n in range(3000)]},
    {"type": "array", "minItems": 10_000, "items": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{6,8}$"}},
    {"type": "string", "minLength": 10, "maxLength": 100_000},
    {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 10_000},
    {"type": "integer", "multipleOf": 1000},
    {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}}, "required": ["at"]},
]


def test_ordinary_schemas_are_accepted(renderer: Renderer, process: GrammarProcess):
    """Twice, also after grammars that have left memory behind, and after one that was refused."""
    published = json.loads((ROOT / "tests" / "benchmarks" / "schemas.json").read_text(encoding="utf-8"))
    schemas = [*ORDINARY, *(entry["schema"] for entry in published)]
    for _ in range(2):
        for schema in schemas:
            assert process.compile(grammar(renderer, schema)).reason is None, schema
        assert process.compile(grammar(renderer, {"type": "integer", "multipleOf": 99991})).reason is not None


def test_memory_that_a_grammar_leaves_behind_refuses_no_later_one(renderer: Renderer, process: GrammarProcess):
    """Each takes more than half of the memory, and the process is started again after it."""
    for number in (33331, 36007, 38011) * 2:
        assert process.compile(grammar(renderer, {"type": "integer", "multipleOf": number})).reason is None
