"""Answers that were paid for: kept on disk by what was asked, so that nothing is asked twice."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from grpo.storage.files import write_atomically

logger = logging.getLogger(__name__)


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    question: str
    """Digest of what was asked."""
    answer: str
    answer_sha256: str


class AnswerCache:
    """One file a question, `folder/3f/3fa1….json`; several processes may share the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, question: Mapping[str, Any]) -> str | None:
        """The answer to this question; None when it was not asked yet, or when the entry is damaged."""
        digest, path = self._place(question)
        try:
            entry = _Entry.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            entry = None
        if entry is None or entry.question != digest or entry.answer_sha256 != _sha256(entry.answer):
            logger.warning("%s is damaged; the judge is asked again", path)
            return None
        return entry.answer

    def put(self, question: Mapping[str, Any], answer: str) -> None:
        """Keep an answer, whole or not at all."""
        digest, path = self._place(question)
        entry = _Entry(question=digest, answer=answer, answer_sha256=_sha256(answer))
        write_atomically(path, entry.model_dump_json())

    def _place(self, question: Mapping[str, Any]) -> tuple[str, Path]:
        digest = _sha256(json.dumps(question, sort_keys=True))
        return digest, self.folder / digest[:2] / f"{digest}.json"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
