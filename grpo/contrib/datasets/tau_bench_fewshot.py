"""tau-bench few-shot: worked dialogues of a shop and an airline as plain text.

    user: Hi, …            → user_responses, without the mark ###STOP### at the end of the simulation
    assistant: None        a call that the data do not show, so that expected.calls stays empty
    tool: {…}              its result
    assistant: Your …      → expected.responses, in order

A line without a speaker belongs to the turn before it.

https://github.com/sierra-research/tau-bench, MIT
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from grpo.contrib.datasets.parts import DatasetPart, find_parts, read_parts
from grpo.scenarios.readers.files.json_file import read_jsonl
from grpo.scenarios.readers.messages.speaker_turns import user_turns_and_replies
from grpo.scenarios.records import SourceRecord, convert_records

_PARTS = {
    name: (f"Mock{name.title()}DomainEnv-few_shot.jsonl", f"few_shot_data/Mock{name.title()}DomainEnv-few_shot.jsonl")
    for name in ("retail", "airline")
}
_SPEAKER = re.compile(r"^(user|assistant|tool): ?", re.MULTILINE)
_STOP = "###STOP###"


class _Transcript(BaseModel):
    messages_display: str


def read_tau_bench_fewshot(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the parts (default `retail`, of `retail` and `airline`), one record per dialogue.

    Raises `DataError` if a file is missing.
    """
    yield from read_parts(find_parts(folder, parts or ("retail",), _PARTS), _read)


def _read(part: DatasetPart) -> Iterator[SourceRecord]:
    return convert_records(read_jsonl(part.path), _Transcript, partial(_scenario, part.stem))


def _scenario(shop: str, transcript: _Transcript, line: int) -> dict[str, Any]:
    before, *rest = _SPEAKER.split(transcript.messages_display)
    if before.strip() or not rest:
        raise ValueError(f"no speaker: {transcript.messages_display[:40]!r}")
    lines = [(speaker, text.replace(_STOP, "").strip()) for speaker, text in zip(rest[::2], rest[1::2], strict=True)]
    if lines[-1] == ("user", ""):
        lines = lines[:-1]  # a turn with only the mark
    user, assistant = user_turns_and_replies(
        [line for line in lines if line[0] != "tool" and line[1] != "None"], "user"
    )
    return {
        "id": f"tau-bench-fewshot-{line}" if shop == "retail" else f"tau-bench-fewshot-{shop}-{line}",
        "topic": shop,
        "domain": "customer_service",
        "user_responses": user,
        "expected": {"responses": assistant},
        "metadata": {"category": shop, "source": "tau_bench_fewshot", "licence": "MIT"},
    }
