"""Made-up evidence for gates of the user's own, because a real evaluation exists only after the training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from grpo.config.gates import PythonGate
from grpo.errors import ConfigError, GRPOError
from grpo.evaluation.evaluate import evaluate
from grpo.evaluation.evidence import Evidence
from grpo.evaluation.gates import check
from grpo.evaluation.strata import Strata
from grpo.messages import Message
from grpo.preflight.facts import Facts
from grpo.scenario import Scenario
from grpo.trajectories import Outcome, Trajectory, Turn

_RESAMPLES = 100
_OF_THE_CODE = (AttributeError, ImportError, NameError, TypeError)
"""Exceptions that the gate would raise for real numbers as well. Others may come from numbers that are made up, or from
files and servers that are not there yet."""


def called(facts: Facts) -> Iterator[Exception]:
    """Call each gate of the user's own with made-up evidence on the held-out scenarios.

    A gate is refused if it returns something else than a check, or if its code is wrong.
    """
    gates = [gate for gate in facts.given.gates if isinstance(gate, PythonGate)]
    scenarios = facts.heldout() if gates else ()
    for gate in gates if scenarios else ():
        try:
            check(gate, _evidence(facts, scenarios))
        except GRPOError as error:
            if error.__cause__ is None or isinstance(error.__cause__, _OF_THE_CODE):
                yield ConfigError(f"{error}. It was called with a made-up evaluation of {len(scenarios)} scenarios")


def _evidence(facts: Facts, scenarios: Sequence[Scenario]) -> Evidence:
    """A candidate that succeeds where the champion fails, in every second scenario."""
    settings = facts.given.evaluation.model_copy(update={"resamples": _RESAMPLES})
    champion, candidate = (
        [
            _episode(policy, scenario, sample, is_success=(number + gain) % 2 > 0 or number % 4 > 1)
            for number, scenario in enumerate(scenarios)
            for sample in range(settings.samples)
        ]
        for policy, gain in (("champion", 0), ("candidate", 1))
    )
    evaluation = evaluate(
        champion, candidate, settings, metric="reward", kl_to_base=0.1, seed=0, strata=Strata.of(scenarios)
    )
    return Evidence(
        evaluation=evaluation,
        champion=champion,
        candidate=candidate,
        settings=settings,
        seed=0,
        strata=Strata.of(scenarios),
    )


def _episode(policy: str, scenario: Scenario, sample: int, *, is_success: bool) -> Trajectory:
    """One question and one reply of four tokens."""
    question, reply = Message(role="user", content="Hello."), Message(role="assistant", content="Hello.")
    return Trajectory(
        scenario_id=scenario.id,
        scenario_hash=scenario.hash,
        category=scenario.metadata.category,
        difficulty=scenario.metadata.difficulty,
        sample=sample,
        seed=sample,
        policy_hash=policy,
        renderer_hash="",
        temperature=1.0,
        turns=(Turn(message=question, start=0, stop=2), Turn(message=reply, start=2, stop=6)),
        token_ids=np.arange(6, dtype=np.int32),
        loss_mask=np.arange(6) > 1,
        sampler_logprobs=np.where(np.arange(6) > 1, -1.0, 0.0).astype(np.float32),
        stop="terminated",
        outcome=Outcome.of({"example": is_success}),
        terminal_reward=float(is_success),
    )
