"""Summary of a study: its trials, the best of them, and the importance of each dimension."""

from __future__ import annotations

from html import escape
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
_MIN_TRIALS = 4  # complete trials for an importance


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TrialRecord(_Part):
    """Values and result of a trial."""

    number: int
    state: State
    """`failed` if the trial raised an error, `crashed` if its process crashed, so that it is retried."""
    ended: bool
    """True if the trial counts towards `n_trials`."""
    params: dict[str, Value]
    intermediate_evals: tuple[float, ...]
    """Held-out reward after each share of the training."""
    reward: float | None
    """The last intermediate evaluation of a complete trial."""
    reason: str | None
    """Error of a failed trial."""
    numbers: dict[str, float]
    """Further metrics of the last evaluation."""
    seconds: float | None


class StudySummary(_Part):
    """All trials of a study. `best_params` and `best_reward` belong to the best complete trial."""

    name: str
    direction: Literal["maximize", "minimize"]
    trials: tuple[TrialRecord, ...]
    importance: dict[str, float]
    """Share of the reward's variation that each dimension explains (PED-ANOVA, arXiv 2304.10255). Empty if fewer than
    four trials are complete, or if all have the same reward."""

    @property
    def ended(self) -> int:
        """Number of trials that have ended."""
        return sum(trial.ended for trial in self.trials)

    def _repr_html_(self) -> str:
        """Table of the trials with their parameters and results, for notebooks."""
        names = list(dict.fromkeys(name for trial in self.trials for name in trial.params))
        rows = [["trial", "state", "reward", *names, "reason"]]
        for trial in self.trials:
            values = [trial.reward, *(trial.params.get(name) for name in names)]
            shown = [
                "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value) for value in values
            ]
            rows.append([str(trial.number), trial.state, *shown, trial.reason or ""])
        best = self.best_trial
        cells = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        heading = "none complete" if best is None else f"best: trial {best.number}, {best.reward:.4g}"
        return f"<p>study {escape(self.name)}; {heading}</p><table>{cells}</table>"

    def count(self, state: State) -> int:
        """Number of trials in this state."""
        return sum(trial.state == state for trial in self.trials)

    @property
    def best_trial(self) -> TrialRecord | None:
        """The best complete trial, or None."""
        complete = [(trial.reward, trial) for trial in self.trials if trial.reward is not None]
        if not complete:
            return None
        pick = max if self.direction == "maximize" else min
        return pick(complete, key=lambda pair: pair[0])[1]

    @property
    def best(self) -> TrialRecord:
        """The best complete trial. Raises `BudgetError` with the first reason if none is complete."""
        best_trial = self.best_trial
        if best_trial is None:
            reasons = [f"trial {trial.number}: {trial.reason}" for trial in self.trials if trial.reason]
            raise BudgetError(
                f"none of the {self.ended} trials of study {self.name} is complete: "
                f"{reasons[0] if reasons else 'no reason is recorded'}"
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
    """Summary of a study. It is fast if `importance` is False."""
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
        reason = f"its process crashed {RETRIES + 1} times. It may have run out of memory"
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
    if len(rewards) < _MIN_TRIALS or len(set(rewards)) == 1:
        return {}
    return {name: float(share) for name, share in optuna.importance.get_param_importances(study).items()}


def _shown(value: Value | None) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)
