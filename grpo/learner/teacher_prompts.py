"""Token sequences that a teacher reads: the policy's own tokens, after a prompt that may have a hint.

    policy reads    S U          A1 E A2        S system prompt, U user's message, E environment's reply
    teacher reads   S U hint     A1 E A2
    loss_mask       . .          x  .  x        the same tokens, and the same loss mask, in both

Everything after the first prompt is kept token by token, so that the distributions of both are comparable at each loss
token. Only the first prompt is rendered again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from grpo.config.distillation import DistillationSettings, PrivilegedContext
from grpo.errors import DataError
from grpo.messages import Message
from grpo.scenario import Scenario
from grpo.trajectories import Trajectory

if TYPE_CHECKING:
    from grpo.renderers.chat_template import Renderer

_OUTCOME = ("calls", "state", "facts", "assertions")


def privileged_context(scenario: Scenario, parts: Iterable[PrivilegedContext]) -> str:
    """Text of the parts of a scenario's expectation that only a teacher reads, or an empty text if it has none.

    outcome      Expected outcome: {"state": {"order 17": "cancelled"}}
    responses    Reference reply: Your order is cancelled.
    """
    lines: list[str] = []
    expected = scenario.expected.model_dump(mode="json")
    for part in parts:
        if part == "responses":
            lines += [f"Reference reply: {response}" for response in scenario.expected.responses]
        elif outcome := {name: expected[name] for name in _OUTCOME if expected[name]}:
            lines.append(f"Expected outcome: {json.dumps(outcome, ensure_ascii=False)}")
    return "\n".join(lines)


def hints_of(scenarios: Iterable[Scenario], parts: Sequence[PrivilegedContext]) -> dict[str, str]:
    """Hints of the scenarios that have one, by id."""
    hints = {scenario.id: privileged_context(scenario, parts) for scenario in scenarios}
    return {scenario_id: hint for scenario_id, hint in hints.items() if hint}


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherSequence:
    """Tokens that the teacher reads for one sample, with as many loss tokens as the sample has, in the same order."""

    token_ids: NDArray[np.int32]  # [tokens]
    loss_mask: NDArray[np.bool_]  # [tokens]
    temperature: float


class TeacherPrompts:
    """Maker of teacher sequences from trajectories.

    Without `privileged_context` in the settings, the teacher reads what the policy has read. With it, the teacher's
    first prompt has the scenario's hint, and a scenario without one in `hints` has no teacher.
    """

    def __init__(
        self, settings: DistillationSettings, renderer: Renderer, *, hints: Mapping[str, str], max_context: int
    ) -> None:
        self.settings = settings
        self._renderer = renderer
        self._hints = hints
        self._max_context = max_context
        self._prompts: dict[tuple[str, bytes], list[int]] = {}

    def sequence(self, trajectory: Trajectory, *, stop: int) -> TeacherSequence | None:
        """Sequence that the teacher reads for the first `stop` tokens. None if the trajectory's scenario has no hint.

        Raises `DataError` if the hint cannot be added to the first prompt, or if the sequence is longer than the
        teacher's context.
        """
        ids, mask = trajectory.token_ids[:stop], trajectory.loss_mask[:stop]
        if self.settings.privileged_context:
            hint = self._hints.get(trajectory.scenario_id)
            if hint is None:
                return None
            messages, end = _first_prompt(trajectory)
            prompt = self._with_hint(trajectory, messages, trajectory.token_ids[:end], hint)
            ids = np.concatenate([np.asarray(prompt, dtype=np.int32), ids[end:]])
            mask = np.concatenate([np.zeros(len(prompt), dtype=np.bool_), mask[end:]])
        if len(ids) > self._max_context:
            raise DataError(
                f"{trajectory.place} has {len(ids)} tokens for the teacher, which reads {self._max_context}. Lower "
                "rollout.max_context, or leave out a part of training.distillation.privileged_context"
            )
        return TeacherSequence(token_ids=ids, loss_mask=mask, temperature=trajectory.temperature)

    def _with_hint(
        self, trajectory: Trajectory, messages: Sequence[Message], ids: NDArray[np.int32], hint: str
    ) -> list[int]:
        """Token ids of the first prompt with the hint in the last message of the user.

        The messages are rendered with and without the hint. What differs is replaced in the prompt that the policy has
        read, which may also have tools before it.
        """
        key = trajectory.scenario_id, ids.tobytes()
        if key not in self._prompts:
            last = max((at for at, message in enumerate(messages) if message.role == "user"), default=None)
            if last is None:
                raise DataError(
                    f"{trajectory.place} has no user message before the first reply, to which "
                    "training.distillation could add its hint. Set privileged_context to [], with another teacher"
                )
            text = self.settings.teacher_message(messages[last].content, hint)
            hinted = [*messages[:last], replace(messages[last], content=text), *messages[last + 1 :]]
            self._prompts[key] = _replaced(
                ids.tolist(),
                self._renderer.build_prompt(messages),
                self._renderer.build_prompt(hinted),
                place=trajectory.place,
            )
        return self._prompts[key]


def _first_prompt(trajectory: Trajectory) -> tuple[tuple[Message, ...], int]:
    """Messages that the policy has read before its first reply, and the number of their tokens."""
    last = next(at for at, turn in enumerate(trajectory.turns) if turn.stop > turn.start)
    return tuple(turn.message for turn in trajectory.turns[: last + 1]), trajectory.turns[last].stop


def _replaced(ids: list[int], plain: list[int], hinted: list[int], *, place: str) -> list[int]:
    """The prompt `ids`, which ends as `plain` does, with that end changed to the end of `hinted`.

    ids T S U e, plain S U e, hinted S U h e  →  T S U h e
    """
    shortest = min(len(plain), len(hinted))
    same = next((at for at in range(shortest) if plain[at] != hinted[at]), shortest)
    end = plain[same:] or plain[-1:]  # at least the last token, so that the place is checked
    tail = hinted[same:] if plain[same:] else [*plain[-1:], *hinted[same:]]
    if ids[len(ids) - len(end) :] != end:
        raise DataError(
            f"{place}: the prompt does not end as its messages are rendered, so that no hint can be added to it. Use a "
            "template that renders the user's last message at the end, or a teacher without privileged_context"
        )
    return [*ids[: len(ids) - len(end)], *tail]
