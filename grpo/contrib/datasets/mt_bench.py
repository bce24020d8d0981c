"""MT-bench: two-turn questions in eight categories.

    turns        → user_responses
    references   → expected.responses: GPT-4's answers, or else the question's own notes

Empty notes are left out. The data have judge prompts, but not the judge's verdicts.

https://github.com/lm-sys/FastChat, Apache-2.0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from grpo.contrib.datasets.parts import find_parts
from grpo.scenarios.readers.files.json_file import read_jsonl
from grpo.scenarios.records import SourceRecord, convert_records, read_all_records

_PUBLISHED = "fastchat/llm_judge/data/mt_bench"
_FILES = {
    "question": ("question.jsonl", f"{_PUBLISHED}/question.jsonl"),
    "reference_answer": (
        "reference_answer_gpt-4.jsonl",
        "reference_answer/gpt-4.jsonl",
        f"{_PUBLISHED}/reference_answer/gpt-4.jsonl",
    ),
}


class _Question(BaseModel):
    question_id: int
    category: str
    turns: tuple[str, ...]
    reference: tuple[str, ...] = ()


class _Choice(BaseModel):
    turns: tuple[str, ...]


class _Answer(BaseModel):
    question_id: int
    choices: tuple[_Choice, ...] = Field(min_length=1)


def read_mt_bench(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the parts (default `question`), one record per question.

    Raises `DataError` if a file is missing or the reference answers are broken.
    """
    (references,) = find_parts(folder, ("reference_answer",), _FILES)
    answers = {
        answer.question_id: answer.choices[0].turns for answer in read_all_records(read_jsonl(references.path), _Answer)
    }

    def fields(question: _Question, _: int) -> dict[str, Any]:
        replies = answers.get(question.question_id, question.reference)
        return {
            "id": f"mt-bench-{question.question_id}",
            "topic": question.category,
            "domain": "general",
            "user_responses": list(question.turns),
            "expected": {"responses": [text for text in replies if text.strip()]},
            "metadata": {"category": question.category, "source": "mt_bench", "licence": "Apache-2.0"},
        }

    for part in find_parts(folder, parts or ("question",), _FILES):
        yield from convert_records(read_jsonl(part.path), _Question, fields)
