"""A run that fine-tunes its base on demonstrations before GRPO."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from grpo.config.pipeline import PipelineConfig
from grpo.config.sft import WrittenDemonstrations
from grpo.evaluation.report import read_report
from grpo.evaluation.schema import ReportDocument
from grpo.learner.offline.demonstrations import read_demonstrations
from grpo.log import LoggedConversation, append
from grpo.messages import Message
from grpo_tasks.registry import registry
from tests.doubles import changed, short_run
from tests.places import ROOT

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One iteration on the embedded desk after eight demonstrations."""
    folder = tmp_path_factory.mktemp("tuned")
    written = (ROOT / "data" / "scenarios" / "support_desk_demonstrations.jsonl").read_text(encoding="utf-8")
    (folder / "demonstrations.jsonl").write_text("\n".join(written.splitlines()[:8]), encoding="utf-8")
    return short_run(
        folder,
        name="tuned",
        sft={
            "demonstrations": {"kind": "jsonl", "path": str(folder / "demonstrations.jsonl")},
            "learning_rate": 1e-3,
            "conversations_per_step": 4,
        },
        training={"iterations": 1},
        rollout={"max_new_tokens": 32},
        registry={"model_name": "tuned"},
    )


def run(config: dict[str, Any], home: Path) -> ReportDocument:
    from grpo_flows.train import train

    train(PipelineConfig.model_validate(config))
    return read_report(home / config["name"] / "report.json")


def cached(document: ReportDocument) -> dict[str, tuple[int, int]]:
    """(cached, runs) of each stage."""
    return {stage.name: (stage.cached, stage.runs) for stage in document.stages}


def test_grpo_starts_from_the_fine_tuned_policy(config: dict[str, Any], home: Path):
    """The champion to beat is the fine-tuned policy; the report has all three, the lineage their hashes."""
    document = run(config, home)
    tuning = document.fine_tuning
    assert tuning is not None
    assert (tuning.demonstrations, len(tuning.losses)) == (8, 2)
    assert document.lineage.champion_policy == tuning.policy != document.lineage.base_policy
    version = registry().find("tuned", document.lineage.run)
    assert version is not None
    policies = (document.lineage.base_policy, tuning.policy, document.lineage.candidate_policy)
    provenance = registry().provenance(version)
    assert provenance.policies == policies
    assert any(name.endswith("demonstrations.jsonl") for name in provenance.external_digests)


def test_fine_tuning_is_cached_until_a_demonstration_changes(config: dict[str, Any], home: Path):
    """The same run is a hit; one demonstration less is another start and another run."""
    first = run(config, home)
    assert cached(first)["sft"] == (1, 1)
    path = Path(config["sft"]["demonstrations"]["path"])
    lines = path.read_text(encoding="utf-8").splitlines()
    assert all(json.loads(line)["messages"] for line in lines)
    path.write_text("\n".join(lines[:7]), encoding="utf-8")
    second = run(config, home)
    assert cached(second)["sft"] == (0, 1)
    assert second.lineage.run != first.lineage.run
    assert second.fine_tuning is not None
    assert first.fine_tuning is not None
    assert second.fine_tuning.policy != first.fine_tuning.policy


def test_a_dry_run_counts_the_fine_tuning(config: dict[str, Any], tmp_path: Path):
    """One sft, and the base among the held-out rollouts: 3 × 24 episodes."""
    from grpo_flows.dry_run import dry_run

    plan = dry_run(PipelineConfig.model_validate(changed(config, store=str(tmp_path / "empty"))))
    stages = {stage.name: stage for stage in plan.stages}
    assert (stages["sft"].runs, stages["evaluate_policy"].runs, stages["rollout"].runs) == (1, 3, 4)


def test_a_retraining_from_a_champion_is_not_fine_tuned_again(config: dict[str, Any]):
    """Its weights come from training; from the base, fine-tuning comes first."""
    from grpo_flows.retrain import retraining_config

    pipeline = PipelineConfig.model_validate(config)
    again = retraining_config(pipeline, name="again", scenarios="s.parquet", model="champion", tags={})
    from_base = retraining_config(pipeline, name="from-base", scenarios="s.parquet", model=None, tags={})
    assert again.sft is None
    assert from_base.sft == pipeline.sft


def test_a_run_is_fine_tuned_on_a_serving_log(config: dict[str, Any], home: Path, tmp_path: Path):
    """The version names the file of its demonstrations. A failure that is logged later changes nothing."""
    from grpo_flows.dry_run import dry_run

    written = WrittenDemonstrations(kind="jsonl", path=config["sft"]["demonstrations"]["path"])
    time = datetime(2021, 11, 20, tzinfo=UTC)

    def log(name: str, messages: tuple[Message, ...], *, success: bool) -> None:
        labels = {"model": "desk/1", "consent": "training", "licence": "own"}
        append(tmp_path / "log", [LoggedConversation(id=name, time=time, messages=messages, success=success, **labels)])

    conversations = read_demonstrations(written)
    for number, messages in enumerate(conversations):
        log(str(number), messages, success=True)
    source = {"kind": "served", "path": str(tmp_path / "log"), "licences": ["own"]}
    served = changed(config, sft={"demonstrations": source}, name="imitated", registry={"model_name": "imitated"})
    first = run(served, home)
    assert first.fine_tuning is not None
    assert first.fine_tuning.demonstrations == len(conversations)
    version = registry().find("imitated", first.lineage.run)
    assert version is not None
    assert len(version.tags["tuned_on"]) == 20
    log("failed", conversations[0], success=False)
    second = run(served, home)
    assert (second.lineage.run, cached(second)["sft"]) == (first.lineage.run, (1, 1))
    plan = {stage.name: stage for stage in dry_run(PipelineConfig.model_validate(served)).stages}
    assert (plan["write_served"].runs, plan["write_served"].cached, plan["sft"].cached) == (1, 1, 1)
