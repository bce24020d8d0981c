"""LLM judge: verdicts by label, cached on disk, with one repair of an answer that cannot be parsed."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from grpo.config.rewards import JudgeSettings
from grpo.rewards.judge.parsing import MalformedVerdict, Verdict, parse_verdicts
from grpo.storage.files import write_atomically

logger = logging.getLogger(__name__)

Parser = Callable[[str, Sequence[str]], dict[str, Verdict]]
"""(answer, labels) → verdicts by label. Raises `MalformedVerdict`."""


class Judge:
    """One model on one server that gives verdicts by label."""

    def __init__(self, settings: JudgeSettings) -> None:
        from grpo.rewards.judge.client import JudgeClient  # openai is an extra

        self.settings = settings
        self.client = JudgeClient(settings)
        self.answers = AnswerCache(Path(settings.folder) / "answers")

    @property
    def address(self) -> str:
        """Server and model."""
        return self.client.server.address

    async def verdicts(
        self,
        messages: Sequence[Mapping[str, str]],
        labels: Sequence[str],
        *,
        rubric: str,
        scenario_id: str,
        parse: Parser = parse_verdicts,
    ) -> dict[str, Verdict]:
        """Verdicts by label, from the cache if the same request was already answered under this rubric.

        The cache keeps the scenario's id, because an answer may quote the conversation, and an erasure has to find it.

        Raises `Unscored` if there is no answer that can be parsed.
        """
        question = {"server": self.address, "rubric": rubric, "request": self.client.request(messages)}
        if (cached := self.answers.get(question)) is not None:
            with suppress(MalformedVerdict):
                return parse(cached, labels)
        answer = await self.client.send(messages)
        try:
            verdicts = parse(answer, labels)
        except MalformedVerdict as problem:
            answer = await self.client.send([*messages, *_repair_request(answer, problem)])
            verdicts = parse(answer, labels)
        self.answers.put(question, answer, scenario_id=scenario_id)
        return verdicts


def _repair_request(answer: str, problem: MalformedVerdict) -> list[dict[str, str]]:
    return [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": f"This cannot be read: {problem}. Answer again, with the JSON object alone."},
    ]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    question: str
    """Digest of the question."""
    answer: str
    answer_sha256: str
    scenario_id: str = ""
    """Scenario of the conversation in the question. Entries of earlier releases have none."""


class AnswerCache:
    """Answers on disk, one file per question, `folder/3f/3fa1….json`. Several processes may share the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, question: Mapping[str, Any]) -> str | None:
        """The answer to this question, or None if the question is new or its entry is damaged."""
        digest, path = self._location(question)
        try:
            entry = _Entry.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            entry = None
        if entry is None or entry.question != digest or entry.answer_sha256 != _sha256(entry.answer):
            logger.warning("%s is damaged. The judge is asked again", path)
            return None
        return entry.answer

    def put(self, question: Mapping[str, Any], answer: str, *, scenario_id: str) -> None:
        """Write an answer to a question about a scenario atomically."""
        digest, path = self._location(question)
        entry = _Entry(question=digest, answer=answer, answer_sha256=_sha256(answer), scenario_id=scenario_id)
        write_atomically(path, entry.model_dump_json())

    def _location(self, question: Mapping[str, Any]) -> tuple[str, Path]:
        digest = _sha256(json.dumps(question, sort_keys=True))
        return digest, self.folder / digest[:2] / f"{digest}.json"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
