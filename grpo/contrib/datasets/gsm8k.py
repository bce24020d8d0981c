"""GSM8K: word problems of grade-school mathematics with a final answer that can be verified.

    "… <<48/2=24>>24 clips in May.\\n#### 72"  →  expected.facts "72", expected.responses "… 24 clips in May."

The calculator's marks `<<…>>` are removed from the solution, and commas from the answer (`1,600` → `1600`).
Difficulty counts the lines of the solution.

https://github.com/openai/grade-school-math, MIT
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
from grpo.scenarios.records import SourceRecord, convert_records, difficulty_by_count

_PARTS = {
    name: (f"{name}.jsonl", f"grade_school_math/data/{name}.jsonl")
    for name in ("train", "test", "train_socratic", "test_socratic")
}
_MARK = re.compile(r"<<[^<>]*>>")
_ANSWER = re.compile(r"-?\d+(\.\d+)?")


class _Problem(BaseModel):
    question: str
    answer: str


def read_gsm8k(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the parts (default `train`), one record per problem. An answer must end in `#### <number>`.

    Raises `DataError` if a file is missing.
    """
    yield from read_parts(find_parts(folder, parts or ("train",), _PARTS), _read)


def _read(part: DatasetPart) -> Iterator[SourceRecord]:
    prefix = "gsm8k" if part.name == "train" else f"gsm8k-{part.stem}"
    return convert_records(read_jsonl(part.path), _Problem, partial(_scenario, prefix))


def _scenario(prefix: str, problem: _Problem, line: int) -> dict[str, Any]:
    solution, mark, last = problem.answer.rpartition("####")
    answer = last.strip().replace(",", "")
    if not mark or not _ANSWER.fullmatch(answer):
        raise ValueError(f"no final answer: {problem.answer[-40:]!r}")
    solution = _MARK.sub("", solution).strip()
    return {
        "id": f"{prefix}-{line}",
        "topic": "grade-school mathematics",
        "domain": "education",
        "user_responses": [problem.question],
        "expected": {"responses": [solution], "facts": [answer]},
        "metadata": {
            "category": "word_problem",
            "difficulty": difficulty_by_count(len(solution.splitlines()), easy=2, medium=4),
            "source": "gsm8k",
            "licence": "MIT",
        },
    }
