"""Generator of scenarios and demonstrations from reasoning-gym's tasks.

Training, held-out and demonstrated questions have indices of their own ranges. Indices may make the same question, so
that its digest says to which split it belongs, and no question is drawn twice: neither training nor demonstrations show
a held-out one. A level, which is a task with other options under a `name` of its own, is held out as a whole by
`train: 0`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from grpo.environments.levels import Level, draw_splits
from grpo.environments.reasoning_gym.environment import make_entry
from grpo.errors import DataError
from grpo.scenarios.split import HELDOUT_SHARE, assign_split

import reasoning_gym  # isort: skip

_INDICES = {"train": range(4_000), "heldout": range(4_000, 8_000), "demonstrations": range(8_000, 12_000)}
"""The generator of index i is seeded with seed + i, so that another seed would repeat the questions of these."""
_SIZE = 12_000


class ReasoningTask(Level):
    """Number of questions of a task."""

    task: str
    """Name in reasoning-gym, such as `chain_sum`."""

    @property
    def generator(self) -> str:
        """Name of the task."""
        return self.task


def reasoning_scenarios(tasks: Sequence[ReasoningTask], seed: int = 0) -> Iterator[dict[str, Any]]:
    """Records of the tasks' scenarios, for a source of kind python. Raises `DataError` if questions are too few."""
    return draw_splits(tasks, lambda task, part, number, drawn: _draw(task, part, number, seed, drawn))


def reasoning_demonstrations(tasks: Sequence[ReasoningTask], each: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Conversations of a question and reasoning-gym's own answer, `each` of every task, for `sft.demonstrations`."""
    for task in tasks:
        for record in _draw(task, "demonstrations", each, seed, set()):
            if not record["expected"]:
                raise DataError(
                    f"task {task.task} of reasoning-gym gives no answer, only a verifier. Take it out of the options"
                )
            yield {
                "messages": [
                    {"role": "user", "content": record["user_responses"][0]},
                    {"role": "assistant", "content": record["expected"]["responses"][0]},
                ]
            }


def _draw(task: ReasoningTask, part: str, number: int, seed: int, drawn: set[str]) -> Iterator[dict[str, Any]]:
    records = list(islice(_different(task, part, seed, drawn), number))
    if len(records) < number:
        raise DataError(
            f"task {task.category} has only {len(records)} different questions for {part}, and {number} are wanted. "
            "Lower that number, or widen its options"
        )
    yield from records


def _different(task: ReasoningTask, part: str, seed: int, drawn: set[str]) -> Iterator[dict[str, Any]]:
    """Yield scenarios with questions that were not drawn before."""
    options = {**task.options, "seed": seed, "size": _SIZE}
    side = "heldout" if part == "heldout" else "train"
    for index in _INDICES[part]:
        entry = make_entry(task.task, options, index)
        digest = hashlib.sha256(entry["question"].encode()).hexdigest()[:16]
        if digest in drawn or assign_split(digest, share=HELDOUT_SHARE) != side:
            continue
        drawn.add(digest)
        yield {
            "id": f"{task.category}-{index}",
            "topic": task.task,
            "user_responses": [entry["question"]],
            "world": {"task": task.task, "options": options, "index": index},
            "expected": {"responses": [entry["answer"]]} if isinstance(entry["answer"], str) else {},
            "metadata": {
                "category": task.category,
                "source": f"reasoning-gym {reasoning_gym.__version__}",
                "licence": "Apache-2.0",
                "identity": f"{task.task} {digest}",
            },
            "split": side,
        }
