"""Checks that the environment gives what gates and rewards need: outcomes, categories, held-out scenarios.

A metric that the environment cannot give is refused here and not after the training, because a gate without evidence
refuses every candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import ge, gt

import numpy as np

from grpo.config.environments import ConversationSettings, ReplaySettings, SimulatedUserSettings, TaskSettings
from grpo.config.gates import (
    CategoryGate,
    GateSettings,
    ImprovementGate,
    Metric,
    MustPassGate,
    PassGate,
    PythonGate,
    SafetyGate,
    with_metric,
)
from grpo.config.pipeline import PipelineConfig
from grpo.environments.catalog import make_environment_without_model, verifies
from grpo.errors import ConfigError, GRPOError
from grpo.evaluation.gates import check_gate_scenarios
from grpo.evaluation.statistics import SHARE, interval
from grpo.learner.teacher_prompts import hints_of
from grpo.preflight.facts import Facts
from grpo.rewards.learned.safety import SafetyReward
from grpo.rollout.curriculum import unknown_levels
from grpo.scenario import Scenario
from grpo.user_objects import bind

ON_OUTCOMES = ("task_completion", "checks")
"""Rewards that read the verified outcome."""
_WITHOUT_REWARD = (ConversationSettings, SimulatedUserSettings, TaskSettings, ReplaySettings)
"""Environments that give an episode no reward of their own."""
Verifies = Callable[[Scenario], bool]
"""True for a scenario if its episodes may end with a success or a failure."""
_MOST = 4096
"""Most held-out scenarios that a message asks for."""
_REMEDY = "Use metric reward, give the scenarios `expected`, or choose an environment that verifies outcomes"


def gate_metric(facts: Facts) -> Metric | None:
    """Metric of gates that name none. None if not all scenarios are known yet, so that the run chooses it later."""
    return None if facts.split() is None else _metric(facts.heldout(), facts.can_verify)


def settled(config: PipelineConfig, heldout: Sequence[Scenario]) -> PipelineConfig:
    """The config with a metric for gates that name none, chosen from the held-out scenarios of a run.

    Raises `ConfigError` if a gate needs something that these scenarios do not have. The checks before a run may have
    missed it, because they read only a part of a large source, and nothing of a data set on a hub.
    """
    environment, judged = make_environment_without_model(config.environment), config.judge is not None

    def is_verified(scenario: Scenario) -> bool:
        return verifies(environment, scenario, judged=judged)

    check_gate_scenarios(config.gates, heldout)
    for error in _unverified(config, heldout, is_verified):
        raise error
    return config.model_copy(update={"gates": with_metric(config.gates, _metric(heldout, is_verified))})


def _metric(heldout: Sequence[Scenario], verifies: Verifies) -> Metric:
    """Success if every category of the held-out base scenarios has a verified outcome, and otherwise reward.

    Conversations of a retraining do not decide, because clients choose their categories.
    """
    verified = any(map(verifies, heldout))
    return "success" if verified and not _without_outcome(_base(heldout), verifies) else "reward"


def gates(facts: Facts) -> Iterator[Exception]:
    """Refuse a named metric `success`, pass^k and must-pass scenarios if their outcomes cannot be verified."""
    if scenarios := facts.heldout():
        yield from _unverified(facts.given, scenarios, facts.can_verify)


def _unverified(config: PipelineConfig, scenarios: Sequence[Scenario], verifies: Verifies) -> Iterator[ConfigError]:
    """Faults of gates that count successes which nothing verifies.

    As in the gates themselves, the conversations of a retraining count for the improvement and as must-pass scenarios.
    For pass^k and categories only the base scenarios count.
    """
    kind, base = config.environment.kind, _base(scenarios)
    verified = {scenario.id for scenario in scenarios if verifies(scenario)}
    for number, gate in enumerate(config.gates):
        place = f"gates[{number}] ({gate.kind})"
        if isinstance(gate, MustPassGate):
            there = {scenario.id for scenario in scenarios}
            if open_ones := [name for name in gate.scenarios if name in there and name not in verified]:
                yield ConfigError(
                    f"{place}: environment {kind} verifies no outcome of {_some(open_ones)}, so that they could never "
                    "pass. Give them `expected`, or take them out of the gate"
                )
        elif isinstance(gate, PassGate) and verified.isdisjoint(scenario.id for scenario in base):
            yield ConfigError(
                f"{place}: environment {kind} verifies no outcome, and pass^k counts successes. {_REMEDY}"
            )
        elif isinstance(gate, ImprovementGate) and gate.metric == "success" and not verified:
            yield ConfigError(
                f"{place}: metric success: environment {kind} verifies no outcome of the {len(scenarios)} held-out "
                f"scenarios. {_REMEDY}"
            )
        elif (
            isinstance(gate, CategoryGate) and gate.metric == "success" and (empty := _without_outcome(base, verifies))
        ):
            yield ConfigError(
                f"{place}: metric success: environment {kind} verifies no outcome in category {_some(empty)}. {_REMEDY}"
            )


def rewards(facts: Facts) -> Iterator[Exception]:
    """Refuse rewards on outcomes if no scenario has one, and `environment` if the environment gives no reward."""
    scenarios, environment = facts.playable(), facts.given.environment
    for number, component in enumerate(facts.given.reward):
        place = f"reward[{number}] ({component.kind})"
        if component.kind == "environment" and isinstance(environment, _WITHOUT_REWARD):
            yield ConfigError(
                f"{place}: environment {environment.kind} gives episodes no reward of its own, as trl, verifiers, "
                "gymnasium_text, reasoning_gym, textarena, textworld and classes of yours do. Use another reward"
            )
        if component.kind in ON_OUTCOMES and scenarios:
            silent = [scenario.id for scenario in scenarios if not _gives_checks(facts, scenario)]
            if len(silent) == len(scenarios):
                yield ConfigError(
                    f"{place} needs verified outcomes, and environment {environment.kind} can verify none of "
                    f"{len(scenarios)} scenarios ({_some(silent)}): give them `expected` (calls, state or facts), or "
                    "use rewards on text"
                )


def credit(facts: Facts) -> Iterator[Exception]:
    """Refuse credit by state if the environment gives no digest of its states."""
    if facts.given.training.credit_assignment != "state":
        return
    settings = facts.given.environment
    if not facts.environment().gives_states:
        yield ConfigError(
            f"training.credit_assignment state: environment {settings.kind} gives no digest of its states. Set it to "
            "trajectory, or write state_digest for a class of your own"
        )
    if isinstance(settings, SimulatedUserSettings | TaskSettings) and settings.model is not None:
        scripted = settings.kind == "task"  # its user follows a scenario's script if there is one
        written = [s.id for s in facts.playable() if not (scripted and s.user_responses)]
        if written:
            yield ConfigError(
                f"training.credit_assignment state: environment.model writes the user's messages of {len(written)} "
                f"scenarios ({_some(written)}), which depend on the whole conversation, so that no two states are the "
                "same. Leave environment.model out, or set credit_assignment to trajectory"
            )


def branches(facts: Facts) -> Iterator[Exception]:
    """Refuse branching rollouts if the environment does not copy its states."""
    if facts.given.rollout.trees is not None and not facts.environment().forks:
        yield ConfigError(
            f"rollout.trees: environment {facts.given.environment.kind} does not copy its states. Leave trees out, or "
            "write fork for a class of your own"
        )


def admission(facts: Facts) -> Iterator[Exception]:
    """Refuse the admission of turn rewards if no outcome can be verified that they could be compared with."""
    scenarios = facts.playable()
    if (
        facts.given.training.turn_reward_admission == "refuse"
        and scenarios
        and not any(map(facts.can_verify, scenarios))
    ):
        yield ConfigError(
            "training.turn_reward_admission refuse compares turn rewards with success, and environment "
            f"{facts.given.environment.kind} verifies no outcome. Set it to warn or off, or give the scenarios "
            "`expected`"
        )


def privileged_context(facts: Facts) -> Iterator[Exception]:
    """Refuse a distillation with hints if no training scenario has one."""
    settings, scenarios, parts = facts.given.training.distillation, facts.playable(), facts.split()
    if settings is None or not settings.privileged_context or not scenarios:
        return
    train = {scenario.id for scenario in scenarios} if parts is None else set(parts.train)
    if not hints_of((scenario for scenario in scenarios if scenario.id in train), settings.privileged_context):
        yield ConfigError(
            f"training.distillation.privileged_context {list(settings.privileged_context)}: none of the {len(train)} "
            "training scenarios expects such a thing, so that the teacher knows no more than the policy. Give the "
            "scenarios `expected`, or name another part"
        )


def curriculum(facts: Facts) -> Iterator[Exception]:
    """Refuse a curriculum if no outcome can be verified, or if no training scenario is in one of its levels."""
    settings, scenarios, parts = facts.given.rollout.curriculum, facts.playable(), facts.split()
    if settings is None or not scenarios:
        return
    if not any(map(facts.can_verify, scenarios)):
        yield ConfigError(
            f"rollout.curriculum draws scenarios by their success, and environment {facts.given.environment.kind} "
            "verifies no outcome; leave it out, give the scenarios `expected`, or choose another environment"
        )
    if settings.levels and parts is not None:
        train = set(parts.train)
        categories = {scenario.metadata.category for scenario in scenarios if scenario.id in train}
        if unknown := set(settings.levels) - categories:
            yield ConfigError(unknown_levels(unknown, categories))


def _gives_checks(facts: Facts, scenario: Scenario) -> bool:
    """True if an episode may have an outcome that a reward reads.

    Without a judge, assertions are left out and other checks remain.
    """
    return verifies(facts.environment(), scenario, judged=True)


def gate_scenarios(facts: Facts) -> Iterator[Exception]:
    """Find the scenarios and categories that gates name among the held-out scenarios, if all of these are known."""
    if facts.split() is not None:
        scenarios = facts.heldout()
        for gate in facts.given.gates:
            yield from _raised([gate], scenarios)


def _raised(gates: Sequence[GateSettings], scenarios: Iterable[Scenario]) -> Iterator[Exception]:
    try:
        check_gate_scenarios(gates, scenarios)
    except GRPOError as error:
        yield error


def enough_scenarios(facts: Facts) -> Iterator[Exception]:
    """Refuse a split on which not even a candidate that wins every scenario could pass a gate with a lower bound."""
    if facts.split() is None:
        return
    confidence, heldout = facts.given.evaluation.confidence, facts.heldout()
    judged = sum(map(facts.can_verify, _base(heldout)))
    for number, gate in enumerate(facts.given.gates):
        if isinstance(gate, ImprovementGate):
            name, ends, count, bound = "difference", (-1.0, 1.0), len(heldout), gate.margin
        elif isinstance(gate, PassGate) and judged:
            name, ends, count, bound = f"pass^{gate.k}", SHARE, judged, gate.floor
        else:
            continue
        highest = partial(_highest_bound, facts, ends)
        above = gt if isinstance(gate, ImprovementGate) else ge
        if above(highest(count), bound):
            continue
        needed = _least(count, lambda n, above=above, highest=highest, bound=bound: above(highest(n), bound))  # type: ignore[misc]
        setting = "margin" if isinstance(gate, ImprovementGate) else "floor"
        yield ConfigError(
            f"gates[{number}] ({gate.kind}): with {count} held-out scenarios the lower bound of the {name} is at most "
            f"{highest(count):.2f} at confidence {confidence:g}, even if the candidate wins all of them, and must be "
            f"{'above' if above is gt else 'at least'} {bound:g}. Hold out "
            f"{f'at least {needed}' if needed else 'more'} (scenarios.validation_fraction), or lower {setting}"
        )


def _highest_bound(facts: Facts, ends: tuple[float, float], count: int) -> float:
    """Lower bound if the candidate has the highest value of the range in each scenario."""
    settings = facts.given.evaluation
    return interval(
        np.full(count, ends[1]),
        ends=ends,
        confidence=settings.confidence,
        resamples=settings.resamples,
        seed=facts.given.seed,
    ).low


def _least(count: int, is_enough: Callable[[int], bool]) -> int | None:
    """Least number of scenarios above `count` that is enough, or None if `_MOST` are not."""
    low, high = count, 2 * count
    while not is_enough(high):
        if high > _MOST:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def gate_functions(facts: Facts) -> Iterator[Exception]:
    """Import the user's own gates, and check their options."""
    for gate in facts.given.gates:
        if isinstance(gate, PythonGate):
            try:
                bind(gate.reference, gate.options)
            except GRPOError as error:
                yield error


def safety(facts: Facts) -> Iterator[Exception]:
    """Load the network of each safety gate."""
    for gate in facts.given.gates:
        if isinstance(gate, SafetyGate):
            try:
                SafetyReward() if gate.model is None else SafetyReward(model=gate.model)
            except GRPOError as error:
                yield error


def _base(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Scenarios of the sources other than conversations of a retraining."""
    return [scenario for scenario in scenarios if scenario.metadata.origin is None]


def _without_outcome(scenarios: Sequence[Scenario], verifies: Verifies) -> list[str]:
    """Categories of these scenarios in which no outcome can be verified."""
    verified = {scenario.metadata.category for scenario in scenarios if verifies(scenario)}
    return sorted({scenario.metadata.category for scenario in scenarios} - verified)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
