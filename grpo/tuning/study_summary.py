"""What a study has shown so far."""

from __future__ import annotations

from typing import Literal

import optuna
from optuna.trial import FrozenTrial, TrialState
from pydantic import BaseModel, ConfigDict

from grpo.config.search_space import Value
from grpo.errors import BudgetError
from grpo.tuning.storage import RETRIES
from grpo.tuning.study import NUMBERS, REASON, SECONDS, exhausted_retries, has_ended

State = Literal["complete", "pruned", "failed", "crashed", "running", "waiting"]
_STATES: dict[TrialState, State] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}
_ENOUGH = 4  # complete trials, from which on an importance says something


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TrialRecord(_Part):
    """One trial."""

    number: int
    state: State
    """`failed` of itself; `crashed` with its process and was put up again."""
    ended: bool
    """Whether it counts as one of the trials that were asked for."""
    params: dict[str, Value]
    intermediate_evals: tuple[float, ...]
    """Held-out reward after each share of the training."""
    reward: float | None
    """The last of them, if the trial is complete."""
    reason: str | None
    """Why it failed."""
    numbers: dict[str, float]
    """What its last look showed besides."""
    seconds: float | None


class StudySummary(_Part):
    """All trials of a study; `best_params` and `best_reward` are those of the best complete one."""

    name: str
    direction: Literal["maximize", "minimize"]
    trials: tuple[TrialRecord, ...]
    importance: dict[str, float]
    """Share of the reward's variation that each dimension explains (PED-ANOVA, arXiv 2304.10255); empty where too few
    trials are complete, or all gave the same."""

    @property
    def ended(self) -> int:
        """Trials that came to an end."""
        return sum(trial.ended for trial in self.trials)

    def count(self, state: State) -> int:
        """Trials in this state."""
        return sum(trial.state == state for trial in self.trials)

    @property
    def best_trial(self) -> TrialRecord | None:
        """The best complete trial so far."""
        known = [(trial.reward, trial) for trial in self.trials if trial.reward is not None]
        if not known:
            return None
        pick = max if self.direction == "maximize" else min
        return pick(known, key=lambda pair: pair[0])[1]

    @property
    def best(self) -> TrialRecord:
        """The best complete trial; raises `BudgetError` with the first reason when none is complete."""
        best_trial = self.best_trial
        if best_trial is None:
            reasons = [f"trial {trial.number}: {trial.reason}" for trial in self.trials if trial.reason]
            raise BudgetError(
                f"none of the {self.ended} trials of study {self.name} is complete; {reasons[0] if reasons else ''}"
            )
        return best_trial

    @property
    def best_params(self) -> dict[str, Value]:
        """Values of the best trial, by dimension."""
        return self.best.params

    @property
    def best_reward(self) -> float:
        """Held-out reward of the best trial."""
        assert self.best.reward is not None
        return self.best.reward


def summarize_study(study: optuna.Study, *, importance: bool = True) -> StudySummary:
    """Read a study; without its importance that is quick."""
    trials = study.get_trials(deepcopy=False)
    return StudySummary(
        name=study.study_name,
        direction="maximize" if study.direction == optuna.study.StudyDirection.MAXIMIZE else "minimize",
        trials=tuple(map(_record, trials)),
        importance=_importance(study, trials) if importance else {},
    )


def _record(trial: FrozenTrial) -> TrialRecord:
    reason = trial.user_attrs.get(REASON)
    state = _STATES[trial.state]
    if exhausted_retries(trial):
        reason = f"its process crashed {RETRIES + 1} times; it may need more memory than there is"
    elif state == "failed" and reason is None:
        state = "crashed"
    return TrialRecord(
        number=trial.number,
        state=state,
        ended=has_ended(trial),
        params=dict(trial.params),
        intermediate_evals=tuple(value for _, value in sorted(trial.intermediate_values.items())),
        reward=trial.value if trial.state == TrialState.COMPLETE else None,
        reason=reason,
        numbers=dict(trial.user_attrs.get(NUMBERS, {})),
        seconds=trial.user_attrs.get(SECONDS),
    )


def _importance(study: optuna.Study, trials: list[FrozenTrial]) -> dict[str, float]:
    rewards = [trial.value for trial in trials if trial.state == TrialState.COMPLETE]
    if len(rewards) < _ENOUGH or len(set(rewards)) == 1:
        return {}
    return {name: float(share) for name, share in optuna.importance.get_param_importances(study).items()}
