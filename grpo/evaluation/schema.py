"""Schemas of `report.json` and `evaluation.json`. The HTML report is rendered from the first."""

from __future__ import annotations

import hashlib
import operator
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from grpo.artifacts import Artifact
from grpo.evaluation.explanation import Explanation
from grpo.learner.metrics import PreferenceMetrics, UpdateMetrics
from grpo.rewards.rollout_summary import CallCounts
from grpo.storage.signing import canonical

SCHEMA_VERSION: Final = "2"
_RELATIONS = {">": operator.gt, "<=": operator.le, ">=": operator.ge}


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Interval(_Part):
    """A mean with its Bayesian bootstrap interval over scenarios."""

    mean: float
    low: float
    high: float
    count: int
    """Number of scenarios."""


class PairedComparison(_Part):
    """Champion and candidate on the same scenarios with the same random numbers, for one slice or estimator."""

    name: str
    """`all`, a category or difficulty, `pass@2` or `pass^2`."""
    champion: Interval
    candidate: Interval
    difference: Interval
    """Candidate minus champion, paired by scenario."""


class ReplayedCalls(_Part):
    """Tool calls of one policy in held-out replays of logged conversations."""

    calls: int
    unrecorded: int
    """Calls that were answered by an error, because the log has no result for them."""


class Replays(_Part):
    """Tool calls of champion and candidate in held-out replays."""

    champion: ReplayedCalls
    candidate: ReplayedCalls


class Evaluation(_Part):
    """Candidate against champion on held-out scenarios."""

    metric: Literal["success", "reward"]
    confidence: float
    champion_policy: str
    candidate_policy: str
    overall: PairedComparison
    by_category: tuple[PairedComparison, ...]
    by_difficulty: tuple[PairedComparison, ...]
    by_stratum: tuple[PairedComparison, ...] = ()
    """Base scenarios and conversations of a retraining. Empty if the run has no conversations."""
    pass_at_k: tuple[PairedComparison, ...] = ()
    """Success in at least one of k attempts at a scenario, k = 1 and up. Empty if no outcome is verified."""
    pass_hat_k: tuple[PairedComparison, ...] = ()
    """Success in each of k attempts at a scenario, k = 1 and up. Empty if no outcome is verified."""
    kl_to_base: float
    """KL(candidate ‖ base) on the candidate's held-out completion tokens, nats per token."""
    failed_share: float
    """Share of the candidate's episodes that ended in an error."""
    truncated_share: float
    """Share of the candidate's episodes that the limit of tokens truncated."""
    turn_limit_share: float = 0.0
    """Share of the candidate's episodes that the environment's limit of turns ended."""
    length_ratio: float
    """Completion tokens per episode, candidate over champion."""
    calls: CallCounts = CallCounts()
    """Tool calls of the candidate."""
    episodes: int
    replays: Replays | None = None
    """None if the environment does not replay a log."""

    @property
    def digest(self) -> str:
        """sha256 of all numbers."""
        return hashlib.sha256(canonical(self.model_dump(mode="json")).encode()).hexdigest()


class GateCheck(_Part):
    """One condition: `value` must be `relation` `bound`."""

    name: str
    value: float | None
    """None if the evaluation gives no evidence. The check fails in this case."""
    relation: Literal[">", "<=", ">="]
    bound: float
    passed: bool
    meaning: str

    @classmethod
    def of(cls, name: str, value: float, relation: Literal[">", "<=", ">="], bound: float, meaning: str) -> GateCheck:
        """Compare a value with its bound."""
        passed = bool(_RELATIONS[relation](value, bound))
        return cls(name=name, value=value, relation=relation, bound=bound, passed=passed, meaning=meaning)


class Decision(_Part):
    """Verdict of the gates."""

    verdict: Literal["promote", "refuse", "failed"]
    """`failed`: the run could not train (no learning signal, no effect), so no candidate was evaluated."""
    reason: str
    checks: tuple[GateCheck, ...] = ()


class IterationMetrics(UpdateMetrics):
    """Metrics of one iteration: its rollout, and its update."""

    model_config = ConfigDict(allow_inf_nan=False)

    index: int
    rounds: int = 1
    """Rollout rounds until enough groups had different rewards."""
    open_levels: tuple[str, ...] = ()
    """Levels of the curriculum that the scenarios were drawn from. Empty without levels."""
    reward: float
    success: float | None
    """Share of verified successes, or None if the environment verifies nothing."""
    components: dict[str, float]
    """Mean of each reward component."""
    highly_correlated: tuple[str, ...] = ()
    """Pairs of reward components with a high correlation, and its value."""
    truncated_share: float
    turn_limit_share: float = 0.0
    failed_share: float
    calls: CallCounts = CallCounts()
    """Tool calls in the rollout."""
    mutual_information: float | None = None
    """Mutual information of scenario and reply, nats per token. None if there are too few replies."""
    input_agnostic: bool = False
    """The replies do not depend on the scenario, by a permutation test."""
    turn_reward_correlation: float | None = None
    """Correlation of turn rewards with success within groups. None without turn rewards, or if all are equal."""
    turn_reward_low: float | None = None
    turn_reward_high: float | None = None
    """Ends of its interval at 95 % confidence."""
    staleness_mean: float | None = None
    staleness_max: int | None = None
    dropped_episodes: int | None = None
    busy_share: float | None = None
    """See `grpo.rollout.windows.WindowMetrics`. None if the rollout is in stages."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Problems of this iteration: replies that do not depend on the input, turn rewards that lower success."""
        texts = []
        if self.input_agnostic:
            texts.append(
                f"the replies do not depend on the scenario: their mutual information is "
                f"{self.mutual_information or 0:.3f} nats per token, no more than that of shuffled replies, at an "
                f"entropy of {self.entropy:.3g} nats per token"
            )
        if self.turn_reward_correlation is not None and (self.turn_reward_high or 0) < 0:
            texts.append(
                "turn rewards mislead: within groups their correlation with success is "
                f"{self.turn_reward_correlation:.2f} [{self.turn_reward_low:.2f}, {self.turn_reward_high:.2f}]"
            )
        return tuple(texts)


class ReportTurn(_Part):
    """One turn of an episode in the report."""

    role: str
    content: str
    tool_calls: tuple[str, ...] = ()
    pieces: tuple[str, ...] = ()
    """Texts of the turn's tokens if the policy generated it. The loss is on these tokens."""


class ReportEpisode(_Part):
    """One policy's episode in the report."""

    policy: str
    turns: tuple[ReportTurn, ...]
    stop: str
    success: bool | None
    checks: dict[str, bool] = Field(default_factory=dict)
    reward: float | None = None
    breakdown: dict[str, float] = Field(default_factory=dict)


class EpisodePair(_Part):
    """Episodes of champion and candidate from the same held-out scenario."""

    scenario_id: str
    sample: int
    category: str
    difficulty: str
    champion: ReportEpisode
    candidate: ReportEpisode


class RolloutRecord(_Part):
    """Scored episodes of one iteration, or of one policy on the held-out scenarios."""

    part: Literal["before", "after"] | int
    """`before` is the champion or base, `after` is the candidate, and a number is the index of an iteration."""
    scored: tuple[Artifact, ...]
    """Parquet files in the store of the run."""


class StageTiming(_Part):
    """Time of one stage: `compute_s` in the stage itself, `wall_s` including the wait for it."""

    name: str
    runs: int
    """Number of runs, including cache hits."""
    cached: int
    compute_s: float
    """Sum over the runs that were not cache hits."""
    wall_s: float


class RunProvenance(_Part):
    """Seed, digests and policies that determine the weights of a run."""

    run: str
    seed: int
    config_digest: str
    code_digest: str
    scenarios_digest: str
    base_policy: str
    forward_path: str
    """Forward path of the base, and its errors against the model's own plain forward pass."""
    chat_format: str | None = None
    """Forms in which tools, calls and unusual conversations are rendered. None in reports of earlier releases."""
    champion_policy: str
    candidate_policy: str
    package_versions: dict[str, str]
    model_version: str | None = None
    """Name and number of the registered version."""


class Ingestion(_Part):
    """Counts of source records, scenarios and splits."""

    records: int
    scenarios: int
    quarantined: int
    train: int
    heldout: int
    reasons: dict[str, int] = Field(default_factory=dict)
    """Quarantined records by reason."""
    data_docs: str | None = None
    """Path of the validation report, relative to the HTML report."""


class SliceMetrics(_Part):
    """Success and reward of one policy on one slice of the scenarios."""

    name: str
    """`all`, or a category or difficulty."""
    success: Interval | None
    """Share of verified successes, or None if the environment verifies nothing."""
    reward: Interval | None
    """Mean reward, or None if no episode has one."""


class FineTuning(_Part):
    """Supervised fine-tuning before the first rollout, and held-out results of the three policies of the run."""

    demonstrations: int
    losses: tuple[float, ...]
    """Loss of each optimizer step, in nats per token."""
    policy: str
    """Hash of the fine-tuned weights."""
    base: SliceMetrics
    fine_tuned: SliceMetrics
    candidate: SliceMetrics


class PreferenceTuning(_Part):
    """DPO before the first rollout, and held-out results of its reference policy, its result and the candidate."""

    pairs: int
    losses: tuple[float, ...]
    """Loss of each optimizer step, in nats per pair."""
    before: PreferenceMetrics
    after: PreferenceMetrics
    """Measured on the pairs that were trained on."""
    policy: str
    """Hash of the trained weights."""
    reference: SliceMetrics
    tuned: SliceMetrics
    candidate: SliceMetrics


class ReportDocument(_Part):
    """Schema of `report.json`. A change of meaning raises the schema version."""

    schema_version: Literal["2"] = SCHEMA_VERSION
    name: str
    created: str
    """UTC, ISO 8601."""
    decision: Decision
    ingestion: Ingestion
    fine_tuning: FineTuning | None = None
    """None if the run has no supervised fine-tuning."""
    preference_tuning: PreferenceTuning | None = None
    """None if the run has no DPO before GRPO."""
    iterations: tuple[IterationMetrics, ...]
    evaluation: Evaluation | None
    explanation: Explanation | None = None
    """None in reports of earlier releases, and if the run was stopped."""
    conversations: tuple[EpisodePair, ...]
    rollouts: tuple[RolloutRecord, ...] = ()
    """All episodes of the run in the store, in the order of their generation. The last iteration has no metrics if its
    update failed."""
    removed: tuple[str, ...] = ()
    """URIs of checkpoints that the run removed, because no run or version references them."""
    stages: tuple[StageTiming, ...]
    wall_s: float
    """From the start of the run to this report."""
    orchestration_share: float
    """Share of the wall time outside the compute of ingest, fine-tuning, rollout, score, train and evaluate."""
    lineage: RunProvenance
    config: str
    """The run's whole configuration, as YAML."""

    @property
    def series(self) -> dict[str, list[float | None]]:
        """Values of each metric by iteration. None if it was not measured, such as the loss of a skipped update."""
        rows = [
            iteration.model_dump(
                exclude={"index", "open_levels", "components", "highly_correlated", "input_agnostic", "calls"}
            )
            | {f"calls_{name}": count for name, count in iteration.calls.model_dump().items()}
            for iteration in self.iterations
        ]
        return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


class PolicyEvaluation(_Part):
    """Metrics of one policy on held-out scenarios."""

    policy: str
    """Hash of its weights."""
    confidence: float
    """Level of the intervals."""
    overall: SliceMetrics
    by_category: tuple[SliceMetrics, ...]
    by_difficulty: tuple[SliceMetrics, ...]
    pass_at_k: tuple[Interval, ...] = ()
    """Success in at least one of k attempts at a scenario, k = 1 and up. Empty if no outcome is verified."""
    pass_hat_k: tuple[Interval, ...] = ()
    """Success in each of k attempts at a scenario, k = 1 and up. Empty if no outcome is verified."""
    episodes: int
    failed_share: float
    truncated_share: float
    turn_limit_share: float = 0.0
    mean_completion_tokens: float
    """Completion tokens per episode."""
    calls: CallCounts = CallCounts()
    """Tool calls in the episodes."""

    @property
    def slices(self) -> tuple[SliceMetrics, ...]:
        """All scenarios, then each category, then each difficulty."""
        return (self.overall, *self.by_category, *self.by_difficulty)


class EvaluationDocument(_Part):
    """Schema of `evaluation.json`. A change of meaning raises the schema version."""

    schema_version: Literal["2"] = SCHEMA_VERSION
    name: str
    """Name of the config."""
    model: str
    """Address of the evaluated model."""
    created: str
    """UTC, ISO 8601."""
    scenarios: int
    """Number of scenarios."""
    scenarios_digest: str
    code_digest: str
    measurement: PolicyEvaluation
    config: str
    """The whole configuration, as YAML."""
