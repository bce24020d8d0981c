"""Made-up evidence for gates of the user's own, because a real evaluation exists only after the training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from traceback import walk_tb

import numpy as np

from grpo.config.gates import PythonGate
from grpo.errors import ConfigError, GRPOError
from grpo.evaluation import gates
from grpo.evaluation.evaluate import evaluate
from grpo.evaluation.evidence import Evidence
from grpo.evaluation.strata import Strata
from grpo.messages import Message
from grpo.preflight.facts import Facts
from grpo.scenario import Scenario
from grpo.trajectories import Outcome, Trajectory, Turn

_RESAMPLES = 100


def called(facts: Facts) -> Iterator[Exception]:
    """Call each gate of the user's own with made-up evidence on the held-out scenarios.

    A gate is refused if it returns something else than a check, or if its code is wrong.
    """
    own = [gate for gate in facts.given.gates if isinstance(gate, PythonGate)]
    scenarios = facts.heldout() if own else ()
    if not scenarios:
        return
    evidence = _evidence(facts, scenarios)
    for gate in own:
        try:
            gates.check(gate, evidence)
        except GRPOError as error:
            if error.__cause__ is None or _is_of_the_code(error.__cause__):
                yield ConfigError(f"{error}. It was called with a made-up evaluation of {len(scenarios)} scenarios")


def _is_of_the_code(error: BaseException) -> bool:
    """True for an exception that real numbers would cause as well: a name that is missing, or wrong arguments.

    Other exceptions may come from numbers that are made up, from components and states that a made-up episode does not
    have, or from files and servers that are not there yet.
    """
    if isinstance(error, AttributeError):
        return error.obj is not None
    if isinstance(error, TypeError):  # raised by the call itself, before the gate's first line
        *_, (frame, _) = walk_tb(error.__traceback__)
        return frame.f_code.co_filename == gates.__file__
    return isinstance(error, ImportError | NameError)


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
