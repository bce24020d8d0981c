"""Every number of the report, as one document: `report.json`, for machines, and what the page is drawn from."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION: Final = "1"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Interval(_Part):
    """A mean with its Bayesian bootstrap interval over scenarios."""

    mean: float
    low: float
    high: float
    count: int
    """Scenarios behind it."""


class PairedComparison(_Part):
    """Champion and candidate on the same scenarios with the same random numbers."""

    name: str
    """`all`, a category or difficulty, `pass@2` or `pass^2`."""
    champion: Interval
    candidate: Interval
    difference: Interval
    """Candidate minus champion, paired by scenario."""


class Evaluation(_Part):
    """Candidate against champion on held-out scenarios."""

    metric: Literal["success", "reward"]
    confidence: float
    champion_policy: str
    candidate_policy: str
    overall: PairedComparison
    by_category: tuple[PairedComparison, ...]
    by_difficulty: tuple[PairedComparison, ...]
    pass_at_k: tuple[PairedComparison, ...] = ()
    """Success in at least one of k tries of a scenario, k = 1 and up; empty where nothing was verified."""
    pass_hat_k: tuple[PairedComparison, ...] = ()
    """Success in each of k tries of a scenario, k = 1 and up; empty where nothing was verified."""
    kl_to_base: float
    """KL(candidate ‖ base), nats a token, on the candidate's own held-out tokens."""
    failed_share: float
    """Share of the candidate's episodes that ended in an error."""
    truncated_share: float
    """Share of the candidate's episodes that were cut off."""
    length_ratio: float
    """Tokens that the candidate says in an episode, over the champion's."""
    episodes: int


class GateCheck(_Part):
    """One condition: `value` must be `relation` `bound`."""

    name: str
    value: float | None
    """None where there is no evidence; then it has not passed."""
    relation: Literal[">", "<=", ">="]
    bound: float
    passed: bool
    meaning: str


class Decision(_Part):
    """What the gates say."""

    verdict: Literal["promote", "refuse", "failed"]
    """`failed`: the run could not train (no learning signal, no effect) and nothing was evaluated."""
    reason: str
    checks: tuple[GateCheck, ...] = ()


class IterationMetrics(_Part):
    """What one turn of rollout, score and train showed."""

    index: int
    rounds: int = 1
    """Rounds of scenarios that were played until enough groups told their siblings apart."""
    reward: float
    success: float | None
    """Share of verified successes; None where the environment verifies nothing."""
    components: dict[str, float]
    """Mean of each reward component."""
    highly_correlated: tuple[str, ...] = ()
    """Pairs of components that say the same, with their correlation."""
    informative_share: float
    kl_to_base: float
    entropy: float
    clip_share: float
    """Share of trained tokens whose ratio was clipped."""
    gradient_norm: float
    learning_rate: float
    truncated_share: float
    failed_share: float
    tokens: int
    """Tokens that were trained on."""
    clipped_rewards: int = 0
    """Rewards that were beyond `training.reward_clip`."""
    loss: float = 0.0
    """Near 0 on-policy: advantages of siblings add up to nothing."""
    ratio: float = 1.0
    """Mean importance ratio."""
    mismatch_kl: float = 0.0
    """KL(sampler ‖ policy) before the first step, nats a token."""
    step_kl: float | None = None
    """KL(old ‖ new) of a trust-region step."""
    margin: float | None = None
    """By how much dpo tells pairs apart."""
    value_loss: float | None = None
    """Of the critic."""
    tokens_per_s: float | None = None
    """Tokens that went through the model in training passes."""
    mfu: float | None = None
    """Share of the accelerator's arithmetic, where its peak is known."""


class ReportTurn(_Part):
    """One message of a shown conversation."""

    role: str
    content: str
    tool_calls: tuple[str, ...] = ()
    pieces: tuple[str, ...] = ()
    """Texts of the tokens of this turn, where the policy said it: these are the trained ones."""


class ReportEpisode(_Part):
    """One side of a shown conversation."""

    policy: str
    turns: tuple[ReportTurn, ...]
    stop: str
    success: bool | None
    checks: dict[str, bool] = Field(default_factory=dict)
    reward: float | None = None
    breakdown: dict[str, float] = Field(default_factory=dict)


class EpisodePair(_Part):
    """The same held-out scenario before and after."""

    scenario_id: str
    sample: int
    category: str
    difficulty: str
    champion: ReportEpisode
    candidate: ReportEpisode


class StageTiming(_Part):
    """One stage of the run; `compute_s` is the work itself, `wall_s` what the run waited for it."""

    name: str
    runs: int
    """All of them, the cached ones included."""
    cached: int
    compute_s: float
    """Of the runs that were not cached."""
    wall_s: float


class RunProvenance(_Part):
    """What a rerun needs to give the same weights."""

    run: str
    seed: int
    config_digest: str
    code_digest: str
    scenarios_digest: str
    base_policy: str
    champion_policy: str
    candidate_policy: str
    package_versions: dict[str, str]
    model_version: str | None = None
    """Name and number in the registry."""


class Ingestion(_Part):
    """What became of the records of the sources."""

    records: int
    scenarios: int
    quarantined: int
    train: int
    heldout: int
    reasons: dict[str, int] = Field(default_factory=dict)
    """Quarantined records by reason."""
    data_docs: str | None = None
    """Path of the validation report, relative to the page."""


class ReportDocument(_Part):
    """The whole report. A change of meaning raises the schema version."""

    schema_version: Literal["1"] = SCHEMA_VERSION
    name: str
    created: str
    """UTC, ISO 8601."""
    decision: Decision
    ingestion: Ingestion
    iterations: tuple[IterationMetrics, ...]
    evaluation: Evaluation | None
    conversations: tuple[EpisodePair, ...]
    removed: tuple[str, ...] = ()
    """Checkpoints that the run removed, because no run or version keeps them."""
    stages: tuple[StageTiming, ...]
    wall_s: float
    """From the start of the run to this report."""
    orchestration_share: float
    """Share of the wall time that is neither ingest, rollout, score, train nor evaluate compute."""
    lineage: RunProvenance
    config: str
    """The whole configuration, as YAML."""

    @property
    def series(self) -> dict[str, list[float]]:
        """One value an iteration for each number that every iteration has."""
        rows = [
            iteration.model_dump(exclude={"index", "components", "highly_correlated"}) for iteration in self.iterations
        ]
        curves = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
        return {name: values for name, values in curves.items() if None not in values}
