"""tau-bench few-shot: worked retail dialogues as plain text.

    user: Hi, …            → user_responses, without the mark ###STOP### that ended the simulation
    assistant: None        a call, which is not shown: there are no expected calls
    tool: {…}              what it returned
    assistant: Your …      → expected.responses, in order

A line without a speaker belongs to the turn before it.

https://github.com/sierra-research/tau-bench, MIT
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from grpo.scenarios.readers.dialogue import from_user_on
from grpo.scenarios.readers.lines import read_lines
from grpo.scenarios.readers.record import Record
from grpo.scenarios.readers.shapes import reshape

_SPEAKER = re.compile(r"^(user|assistant|tool): ?", re.MULTILINE)
_STOP = "###STOP###"


class _Transcript(BaseModel):
    messages_display: str


def read_tau_bench_fewshot(folder: Path) -> Iterator[Record]:
    """Read `MockRetailDomainEnv-few_shot.jsonl`, one record a dialogue.

    Raises `DataError` where the file is missing.
    """
    return reshape(read_lines(folder / "MockRetailDomainEnv-few_shot.jsonl"), _Transcript, _scenario)


def _scenario(found: _Transcript, line: int) -> dict[str, Any]:
    before, *rest = _SPEAKER.split(found.messages_display)
    if before.strip() or not rest:
        raise ValueError(f"no speaker: {found.messages_display[:40]!r}")
    said = [(who, text.replace(_STOP, "").strip()) for who, text in zip(rest[::2], rest[1::2], strict=True)]
    if said[-1] == ("user", ""):
        said = said[:-1]  # the mark alone
    user, assistant = from_user_on([turn for turn in said if turn[0] != "tool" and turn[1] != "None"], "user")
    return {
        "id": f"tau-bench-fewshot-{line}",
        "topic": "retail",
        "domain": "customer_service",
        "user_responses": user,
        "expected": {"responses": assistant},
        "metadata": {"category": "retail", "source": "tau_bench_fewshot", "licence": "MIT"},
    }
