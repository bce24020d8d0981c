"""Playing, for training and for judging: rollouts in shards, scored, in as many rounds as it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from flows.ledger import Ledger
from grpo.artifacts import Artifact
from grpo.config.pipeline import PipelineConfig
from grpo.config.rollout import RolloutSettings
from grpo.rewards.rollout_summary import RolloutSummary
from tasks.ingest import IngestResult
from tasks.rollout import rollout
from tasks.score import ScoreResult, score
from tasks.split import SplitResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The scored rounds of one iteration."""

    rounds: tuple[ScoreResult, ...]

    @property
    def scored(self) -> tuple[Artifact, ...]:
        """The episodes, one artifact a round."""
        return tuple(result.scored for result in self.rounds)

    @property
    def summary(self) -> RolloutSummary:
        """Means over all rounds."""
        return reduce(RolloutSummary.joined, (result.summary for result in self.rounds))


def play_rounds(play: Callable[[int], ScoreResult], settings: RolloutSettings, *, scenarios: int) -> Played:
    """Play one round, and further ones while too few groups have siblings that differ.

    After `max_rounds`, or when all scenarios were played, what there is must do. This is the dynamic sampling of DAPO
    (arXiv 2503.14476, eq. 11), with groups that teach nothing left to the learner to drop.
    """
    played = Played(rounds=(play(0),))
    while (
        played.summary.informative_groups < (settings.informative_groups or 0)
        and len(played.rounds) < settings.max_rounds
        and played.summary.groups < scenarios
    ):
        played = Played(rounds=(*played.rounds, play(len(played.rounds))))
    return played


class Rollouts:
    """What the policies of one run play."""

    def __init__(self, config: PipelineConfig, ledger: Ledger, data: IngestResult, sides: SplitResult) -> None:
        self.config = config
        self.ledger = ledger
        self.data = data
        self.sides = sides

    def iteration(self, checkpoint: Artifact, index: int) -> Played:
        """Play one iteration for training."""
        return play_rounds(
            lambda further: self._play(checkpoint, index, further), self.config.rollout, scenarios=self.sides.train
        )

    def heldout(self, checkpoint: Artifact) -> ScoreResult:
        """Play the whole held-out side, as evaluation wants it."""
        return self._play(checkpoint, "heldout", 0)

    def _play(self, checkpoint: Artifact, part: int | str, further: int) -> ScoreResult:
        """Roll out one round of an iteration, or the held-out side, in shards, and score it."""
        config, heldout = self.config, part == "heldout"
        shared = {
            "scenarios": self.data.scenarios,
            "split": self.sides.split,
            "checkpoint": checkpoint,
            "agent": config.agent,
            "environment": config.environment,
            "settings": config.rollout,
            "samples": config.evaluation.samples if heldout else config.rollout.group_size,
            "temperature": config.evaluation.temperature if heldout else config.rollout.temperature,
            "part": part,
            "round": further,
            "seed": config.seed,
            "store": config.store,
        }
        played = self.ledger.map(rollout, [{**shared, "shard": k} for k in range(config.rollout.shards)])
        return self.ledger.run(
            score,
            rollouts=tuple(result.rollout for result in played),
            scenarios=self.data.scenarios,
            reward=config.reward,
            judge=config.judge,
            error_budget=config.rollout.error_budget,
            store=config.store,
        )
