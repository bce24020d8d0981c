"""MT-bench: questions of two turns in eight categories.

    turns        → user_responses
    references   → expected.responses: GPT-4's answers where there are some, else the question's own notes

The notes of some questions are empty for a turn; empty ones are left out. There are judge prompts, but no judgements.

https://github.com/lm-sys/FastChat, Apache-2.0
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from grpo.errors import DataError
from grpo.scenarios.readers.lines import read_lines
from grpo.scenarios.readers.record import Record
from grpo.scenarios.readers.shapes import first_fault, reshape


class _Question(BaseModel):
    question_id: int
    category: str
    turns: tuple[str, ...]
    reference: tuple[str, ...] = ()


class _Choice(BaseModel):
    turns: tuple[str, ...]


class _Answer(BaseModel):
    question_id: int
    choices: tuple[_Choice, ...]


def read_mt_bench(folder: Path) -> Iterator[Record]:
    """Read `question.jsonl`, one record a question.

    Raises `DataError` where a file is missing, or the reference answers are broken.
    """
    answers = _answers(folder / "reference_answer_gpt-4.jsonl")

    def fields(found: _Question, _: int) -> dict[str, Any]:
        references = answers.get(found.question_id, found.reference)
        return {
            "id": f"mt-bench-{found.question_id}",
            "topic": found.category,
            "domain": "general",
            "user_responses": list(found.turns),
            "expected": {"responses": [text for text in references if text.strip()]},
            "metadata": {"category": found.category, "source": "mt_bench", "licence": "Apache-2.0"},
        }

    yield from reshape(read_lines(folder / "question.jsonl"), _Question, fields)


def _answers(path: Path) -> dict[int, tuple[str, ...]]:
    """GPT-4's first answer to each question that it answered."""
    answers = {}
    for record in read_lines(path):
        if record.data is None:
            raise DataError(f"{path}:{record.line}: {record.problem}; fetch the published file again")
        try:
            answer = _Answer.model_validate(record.data)
        except ValidationError as error:
            raise DataError(f"{path}:{record.line}: {first_fault(error)}; fetch the published file again") from error
        answers[answer.question_id] = answer.choices[0].turns
    return answers
