"""GSM8K: word problems of grade-school mathematics with a final answer that can be checked.

    "… <<48/2=24>>24 clips in May.\\n#### 72"  →  expected.facts "72", expected.responses "… 24 clips in May."

The calculator's marks `<<…>>` are taken out of the solution, the commas out of the answer (`1,600` → `1600`). Only the
training file is at hand, so no side is declared. Difficulty counts the lines of the solution.

https://github.com/openai/grade-school-math, MIT
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from grpo.scenarios.readers.lines import read_lines
from grpo.scenarios.readers.record import Record
from grpo.scenarios.readers.shapes import grade, reshape

_MARK = re.compile(r"<<[^<>]*>>")
_ANSWER = re.compile(r"-?\d+(\.\d+)?")


class _Problem(BaseModel):
    question: str
    answer: str


def read_gsm8k(folder: Path) -> Iterator[Record]:
    """Read `train.jsonl`, one record a problem; an answer that does not end in `#### <number>` is a problem.

    Raises `DataError` where the file is missing.
    """
    return reshape(read_lines(folder / "train.jsonl"), _Problem, _scenario)


def _scenario(found: _Problem, line: int) -> dict[str, Any]:
    solution, mark, last = found.answer.rpartition("####")
    answer = last.strip().replace(",", "")
    if not mark or not _ANSWER.fullmatch(answer):
        raise ValueError(f"no final answer: {found.answer[-40:]!r}")
    solution = _MARK.sub("", solution).strip()
    return {
        "id": f"gsm8k-{line}",
        "topic": "grade-school mathematics",
        "domain": "education",
        "user_responses": [found.question],
        "expected": {"responses": [solution], "facts": [answer]},
        "metadata": {
            "category": "word_problem",
            "difficulty": grade(len(solution.splitlines()), easy=2, medium=4),
            "source": "gsm8k",
            "licence": "MIT",
        },
    }
