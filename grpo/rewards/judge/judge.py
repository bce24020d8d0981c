"""A judge that gives verdicts: what was paid for is remembered, and what cannot be read is sent back once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from grpo.config.rewards import JudgeSettings
from grpo.rewards.judge.cache import AnswerCache
from grpo.rewards.judge.parsing import MalformedVerdict, Verdict, parse_verdicts

Reader = Callable[[str, Sequence[str]], dict[str, Verdict]]
"""(answer, labels) → verdicts by label; raises `MalformedVerdict`."""


class Judge:
    """One model on one server, asked for verdicts by label."""

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
        read: Reader = parse_verdicts,
    ) -> dict[str, Verdict]:
        """Verdicts by label, from what the judge has answered before where it was asked this by this rubric.

        Raises `Unscored` where there is no answer, or not one that can be read.
        """
        question = {"server": self.address, "rubric": rubric, "request": self.client.request(messages)}
        if (known := self.answers.get(question)) is not None:
            with suppress(MalformedVerdict):
                return read(known, labels)
        answer = await self.client.send(messages)
        try:
            verdicts = read(answer, labels)
        except MalformedVerdict as problem:
            answer = await self.client.send([*messages, *_sent_back(answer, problem)])
            verdicts = read(answer, labels)
        self.answers.put(question, answer)
        return verdicts


def _sent_back(answer: str, problem: MalformedVerdict) -> list[dict[str, str]]:
    return [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": f"This cannot be read: {problem}. Answer again, with the JSON object alone."},
    ]
