"""A run whose base is trained by DPO on preference pairs before GRPO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.pipeline import PipelineConfig
from grpo.evaluation.report import read_report
from grpo.evaluation.schema import ReportDocument
from grpo_tasks.registry import registry
from tests.doubles import changed, short_run

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One iteration on the embedded desk after six pairs."""
    folder = tmp_path_factory.mktemp("preferred")
    lines = [
        {
            "prompt": [{"role": "user", "content": f"My {item} is broken."}],
            "chosen": [{"role": "assistant", "content": "What is your order number?"}],
            "rejected": [{"role": "assistant", "content": "I cannot help you."}],
        }
        for item in ("lamp", "chair", "desk", "sofa", "clock", "kettle")
    ]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return short_run(
        folder,
        name="preferred",
        dpo={
            "pairs": {"kind": "jsonl", "path": str(folder / "pairs.jsonl")},
            "learning_rate": 1e-4,
            "pairs_per_step": 3,
        },
        training={"iterations": 1},
        rollout={"max_new_tokens": 32},
        registry={"model_name": "preferred"},
    )


def run(config: dict[str, Any], home: Path) -> ReportDocument:
    from grpo_flows.train import train

    train(PipelineConfig.model_validate(config))
    return read_report(home / config["name"] / "report.json")


def cached(document: ReportDocument) -> tuple[int, int]:
    """(cached, runs) of the stage dpo."""
    return next((stage.cached, stage.runs) for stage in document.stages if stage.name == "dpo")


def test_grpo_starts_from_the_policy_of_the_pairs(config: dict[str, Any], home: Path):
    """The report has pairs, losses and accuracies; the same run is a hit."""
    first = run(config, home)
    tuning = first.preference_tuning
    assert tuning is not None
    assert first.fine_tuning is None
    assert (tuning.pairs, len(tuning.losses)) == (6, 2)
    assert tuning.losses[0] == pytest.approx(0.693147, abs=1e-5)
    assert (tuning.before.reward_accuracy, tuning.after.reward_accuracy) == (0.5, 1.0)
    assert first.lineage.champion_policy == tuning.policy != first.lineage.base_policy
    version = registry().find("preferred", first.lineage.run)
    assert version is not None
    policies = (first.lineage.base_policy, tuning.policy, first.lineage.candidate_policy)
    assert registry().provenance(version).policies == policies
    again = run(config, home)
    assert (cached(first), cached(again)) == ((0, 1), (1, 1))


def test_a_dry_run_counts_the_stages_before_grpo(config: dict[str, Any], tmp_path: Path):
    """One dpo, and its reference among the held-out rollouts; with sft before it one policy more."""
    from grpo_flows.dry_run import dry_run

    demonstration = {"messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]}
    (tmp_path / "demonstrations.jsonl").write_text(json.dumps(demonstration))
    demonstrations = {"demonstrations": {"kind": "jsonl", "path": str(tmp_path / "demonstrations.jsonl")}}
    for sections, count in (({}, 3), ({"sft": demonstrations}, 4)):
        run_config = changed(config, store=str(tmp_path / "empty"), **sections)
        stages = {stage.name: stage.runs for stage in dry_run(PipelineConfig.model_validate(run_config)).stages}
        assert (stages["dpo"], stages.get("sft", 0)) == (1, len(sections))
        assert (stages["evaluate_policy"], stages["rollout"]) == (count, 1 + count)


@pytest.mark.parametrize(
    ("name", "value"), [("beta", 0.2), ("epochs", 2), ("learning_rate", 1e-3), ("pairs_per_step", 4)]
)
def test_every_setting_is_in_the_identity_of_the_stage(config: dict[str, Any], name: str, value: float):
    """Another value is another stage; another path of the same pairs is the same."""
    from grpo.identity.cache_identity import stage_key

    def key(**changes: object) -> str:
        settings = PipelineConfig.model_validate(changed(config, dpo=changes)).dpo
        return stage_key("dpo", {"settings": settings})

    path = Path(config["dpo"]["pairs"]["path"])
    copied = path.with_name("copied.jsonl")
    copied.write_bytes(path.read_bytes())
    assert key() == key(pairs={"kind": "jsonl", "path": str(copied)}) != key(**{name: value})
