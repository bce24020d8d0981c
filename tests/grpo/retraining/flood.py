"""A retraining beside a flood: real mixtures, Parquet files and gates, and policies whose success rates are known.

A base of 800 scenarios and 200 honest conversations of three keys stand beside 2,000 of an attacker, who states false
outcomes. Episodes are drawn by the rates of `CHAMPION`, `HONEST` and `POISONED`, independently for each policy.

Training is not simulated: `HONEST` is what training on the honest conversations gives, better on them and on the base;
`POISONED` is the worst of the attacker's candidates, better in the attacker's conversations and no different elsewhere,
so that no loss gives it away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.gates import DEFAULT_GATES, GateSettings
from grpo.config.pipeline import EvaluationSettings
from grpo.config.retraining import MixtureSettings
from grpo.evaluation.evaluate import evaluate
from grpo.evaluation.strata import Strata
from grpo.scenario import Metadata, Origin, Scenario
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import read_scenarios, write_scenarios
from grpo.tables import read_trajectories, write_trajectories
from grpo.trajectories import Outcome, Trajectory
from grpo_tasks.build_mixture import build_mixture
from grpo_tasks.gate import gate
from grpo_tasks.split import split
from tests.doubles import make_trajectory, put_file, put_folder

Rates = Mapping[str, float]
"""Success rates by the first word of a scenario's id: base, honest, attack."""
CHAMPION: Rates = {"base": 0.60, "honest": 0.40, "attack": 0.10}
HONEST: Rates = {"base": 0.75, "honest": 0.70, "attack": 0.10}
POISONED: Rates = {"base": 0.60, "honest": 0.40, "attack": 0.90}
CATEGORIES = ("delay", "refund", "address", "invoice")
SETTINGS = EvaluationSettings(samples=2, resamples=300)
FRACTION = 0.25


def conversations(
    prefix: str, count: int, *, keys: int, category: str = "", copied: bool = False
) -> Iterator[Scenario]:
    """Conversations of several keys in turns; `copied`: each of them was sent under all of the keys."""
    names = [f"{prefix}-key-{k}" for k in range(keys)]
    for k in range(count):
        first = names[k % keys]
        senders = (first, *(name for name in names if copied and name != first))
        yield Scenario(
            id=f"{prefix}-{k}",
            user_responses=(f"{prefix}: parcel {k} is late.",),
            metadata=Metadata(
                category=category or CATEGORIES[k % len(CATEGORIES)],
                origin=Origin(keys=senders, user=f"{prefix} user {k % 100}"),
            ),
        )


class Retraining:
    """A base, honest conversations and those of an attacker; each seed mixes and plays them anew."""

    def __init__(self, folder: Path, attack: Iterable[Scenario]) -> None:
        self._store = ArtifactStore(str(folder))
        base = [
            Scenario(
                id=f"base-{k}",
                user_responses=(f"Order {k} is late.",),
                metadata=Metadata(category=CATEGORIES[k % len(CATEGORIES)]),
            )
            for k in range(800)
        ]
        live = [*conversations("honest", 200, keys=3), *attack]
        self._base = self._put("scenarios", SCENARIOS_FILE, base)
        self._live = self._put("conversations", "accepted.parquet", live)
        self._new = [item.id for item in live]
        self._split = split.fn(
            scenarios=self._base, validation_fraction=FRACTION, limit=None, store=self._store.uri
        ).split

    def verdicts(self, *candidates: Rates, seed: int, gates: Sequence[GateSettings] = DEFAULT_GATES) -> list[str]:
        """Verdicts of the gates on candidates with these success rates."""
        mixed = build_mixture.fn(
            base=self._base,
            split=self._split,
            conversations=self._live,
            new_ids=self._new,
            lineage=(),
            settings=MixtureSettings(),
            validation_fraction=FRACTION,
            seed=seed,
            store=self._store.uri,
        )
        mixture = list(read_scenarios(self._store.path(mixed.mixture)))
        table = self._put("scenarios", SCENARIOS_FILE, mixture)
        heldout = [item for item in mixture if item.split == "heldout"]
        champion = self._play(heldout, CHAMPION, "champion", seed)
        verdicts = []
        for rates in candidates:
            candidate = self._play(heldout, rates, "candidate", seed)
            before, after = (list(read_trajectories(self._store.path(part))) for part in (champion, candidate))
            evaluation = evaluate(
                before, after, SETTINGS, metric="success", kl_to_base=0.1, seed=seed, strata=Strata.of(mixture)
            )
            decision = gate.fn(
                evaluation=evaluation,
                champion=champion,
                candidate=candidate,
                scenarios=table,
                gates=gates,
                settings=SETTINGS,
                seed=seed,
                store=self._store.uri,
            ).decision
            verdicts.append(decision.verdict)
        return verdicts

    def _play(self, heldout: Sequence[Scenario], rates: Rates, policy: str, seed: int) -> Artifact:
        rng = np.random.default_rng([seed, *policy.encode()])

        def episode(item: Scenario, sample: int) -> Trajectory:
            success = bool(rng.random() < rates[item.id.partition("-")[0]])
            return make_trajectory(
                scenario_id=item.id,
                category=item.metadata.category,
                sample=sample,
                policy_hash=policy,
                outcome=Outcome(success=success),
            )

        played = [episode(item, sample) for item in heldout for sample in range(SETTINGS.samples)]
        return put_file(self._store, "scored", ".parquet", lambda path: write_trajectories(path, played, provenance={}))

    def _put(self, kind: str, name: str, scenarios: list[Scenario]) -> Artifact:
        return put_folder(self._store, kind, lambda folder: write_scenarios(folder / name, scenarios))
