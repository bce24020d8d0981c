"""The real flow on the real tiny model, against a real Prefect server and a real MLflow store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from grpo import progress
from grpo.config.pipeline import PipelineConfig
from grpo.errors import ConfigError, RegistryError
from grpo.evaluation.recorded_episodes import read_part
from grpo.evaluation.report import read_report
from grpo.evaluation.schema import EvaluationDocument, ReportDocument
from grpo_cli.app import app
from tests.doubles import short_run
from tests.grpo.registry.making import ANNA, put_version
from tests.places import DESK_MODEL, DESK_SCENARIOS

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> PipelineConfig:
    """A short run on the embedded desk."""
    return PipelineConfig.model_validate(
        short_run(
            tmp_path_factory.mktemp("evaluated"),
            name="evaluated",
            scenarios={"limit": 16},
            rollout={"max_new_tokens": 32},
            training={"iterations": 1},
            registry={"model_name": "evaluated"},
        )
    )


@pytest.fixture(scope="module")
def trained(config: PipelineConfig, home: Path) -> ReportDocument:
    """Report of a training of this config."""
    from grpo_flows.train import train

    train(config)
    return read_report(home / config.name / "report.json")


def _evaluate(config: PipelineConfig, **options: Any) -> tuple[EvaluationDocument, dict[str, bool]]:
    """The document, and of each stage whether it was cached."""
    from grpo_flows.evaluate import evaluate

    cached: dict[str, bool] = {}

    def watch(stage: str, done: int, total: int, numbers: dict[str, float]) -> None:
        if "cached" in numbers:
            cached[stage] = bool(numbers["cached"])

    with progress.observed(watch):
        return evaluate(config, **options), cached


def test_a_registered_model_is_what_its_training_said_it_is(
    config: PipelineConfig, trained: ReportDocument, home: Path
):
    """The episodes are those that the training has judged it by: nothing is played again."""
    document, cached = _evaluate(config, model="models:/evaluated@candidate")
    assert trained.evaluation is not None
    judged = trained.evaluation.overall.candidate
    assert document.measurement.policy == trained.evaluation.candidate_policy
    assert document.measurement.overall.success == judged
    categories = {slice_metrics.name: slice_metrics.success for slice_metrics in document.measurement.by_category}
    assert categories == {part.name: part.candidate for part in trained.evaluation.by_category}
    del cached["evaluate_policy"]  # True if another test has evaluated it
    assert cached == dict.fromkeys(("ingest", "validate", "split", "rollout", "score"), True)
    written = (home / "evaluated" / "evaluation.json").read_text()
    assert EvaluationDocument.model_validate_json(written) == document


def test_a_model_is_the_same_by_alias_by_number_and_by_folder(config: PipelineConfig, trained: ReportDocument):
    """Three addresses of one checkpoint, and of the base a fourth."""
    from grpo_tasks.registry import registry

    version = registry().resolve("models:/evaluated@candidate")
    found = [
        _evaluate(config, model=model)[0].measurement.policy
        for model in (f"models:/evaluated/{version.version}", version.checkpoint.uri, str(DESK_MODEL))
    ]
    assert found == [trained.lineage.candidate_policy] * 2 + [trained.lineage.base_policy]


def test_a_version_of_another_store_is_copied(config: PipelineConfig, trained: ReportDocument, tmp_path: Path):
    """As a training does with its champion: the config may name another store than the one of that training."""
    elsewhere = config.model_copy(update={"store": str(tmp_path / "elsewhere")})
    document, _ = _evaluate(elsewhere, model="models:/evaluated@candidate")
    assert document.measurement.policy == trained.lineage.candidate_policy


def test_the_version_that_is_checked_is_the_one_that_is_measured(config: PipelineConfig, trained: ReportDocument):
    """With follow_alias that is the alias's, also where the promoted one has no files; the document has its number."""
    from grpo_flows.plans.evaluate import plan_evaluation
    from grpo_flows.train import train
    from grpo_tasks.registry import registry

    settings = config.registry.model_copy(update={"model_name": "followed", "follow_alias": True})
    followed = config.model_copy(update={"name": "followed", "registry": settings})
    version = train(followed).version
    assert version is not None
    gone = put_version(registry(), "followed", "b", against="base")
    registry().promotions("followed").promote(gone, reason="by hand", by=ANNA)
    registry().client.set_registered_model_alias("followed", "champion", str(version.version))
    assert _evaluate(followed)[0].model == version.address
    outline = plan_evaluation(
        followed, model=None, scenarios_file=None, num_episodes=None, output=Path("evaluation.json")
    )
    assert outline.facts["model"].startswith(f"{version.address}, checkpoint ")


def test_a_dry_run_finds_what_the_evaluation_finds(config: PipelineConfig, trained: ReportDocument, home: Path):
    """The number of episodes, and that none of the played ones is played again."""
    from grpo_flows.plans.evaluate import plan_evaluation

    assert trained.evaluation is not None
    outline = plan_evaluation(
        config, model="models:/evaluated@candidate", scenarios_file=None, num_episodes=None, output=home / "new.json"
    )
    assert outline.facts["scenarios"] == f"{trained.ingestion.heldout} held out"
    assert outline.facts["stages"].startswith("in the cache: ingest, validate, split, rollout, score")
    assert not (home / "new.json").exists()


def test_a_reproduction_can_be_planned(config: PipelineConfig, trained: ReportDocument):
    """The plan has the inputs of the training."""
    from grpo_flows.plans.reproduce import plan_reproduction

    outline = plan_reproduction("models:/evaluated@candidate")
    assert outline.facts["sources and base model"] == "unchanged"
    assert outline.facts["differences"].startswith("none")


def test_the_report_names_all_episodes_of_the_run(config: PipelineConfig, trained: ReportDocument):
    """Those of each iteration, and the held-out ones of both policies."""
    assert trained.evaluation is not None
    assert [record.part for record in trained.rollouts] == [0, "before", "after"]
    before, after = (read_part(trained, part) for part in ("before", "after"))
    assert {trajectory.policy_hash for trajectory in after} == {trained.evaluation.candidate_policy}
    assert {trajectory.policy_hash for trajectory in before} == {trained.evaluation.champion_policy}
    assert len(read_part(trained, 0)) == config.rollout.scenarios * config.rollout.group_size


def test_mlflow_shows_the_card_and_the_report(trained: ReportDocument):
    """The version's description is Markdown with its result; the page is an artifact of its run."""
    from grpo_tasks.registry import registry

    models = registry()
    version = models.resolve("models:/evaluated@candidate")
    files = {item.path for item in models.client.list_artifacts(version.run_id)}
    assert {"report.html", "report.json", "report.png"} <= files
    card = models.client.get_model_version("evaluated", str(version.version)).description
    assert trained.evaluation is not None
    assert f"| this version | {trained.evaluation.overall.candidate.mean:.3f} |" in card
    assert version.tags["heldout"].startswith("success ")


def test_the_numbers_stand_in_prefects_pages(config: PipelineConfig, trained: ReportDocument):
    """A table with a row for each category and difficulty."""
    from prefect.artifacts import Artifact

    document, _ = _evaluate(config, model="models:/evaluated@candidate")
    shown = Artifact.get("slices")
    assert shown is not None
    rows = json.loads(shown.data)
    assert [row["name"] for row in rows] == [slice_metrics.name for slice_metrics in document.measurement.slices]
    assert document.measurement.overall.success is not None
    assert rows[0]["success"] == round(document.measurement.overall.success.mean, 4)
    tries = Artifact.get("pass-rates")
    assert tries is not None
    (once,) = json.loads(tries.data)  # each scenario was played once
    shares = once["pass\\@k"], once["pass^k"]  # names of columns are Markdown, too
    assert (once["name"], *shares) == ("1 tries", rows[0]["success"], rows[0]["success"])


def test_fewer_episodes_and_other_scenarios_can_be_asked_for(config: PipelineConfig, tmp_path: Path):
    """Five of the held-out side; all of a file of twelve."""
    few, _ = _evaluate(config, model=str(DESK_MODEL), num_episodes=5)
    assert (few.scenarios, few.measurement.episodes) == (5, 5)
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(DESK_SCENARIOS.read_text().splitlines()[:12]) + "\n")
    whole, _ = _evaluate(config, model=str(DESK_MODEL), scenarios_file=str(file))
    assert (whole.scenarios, whole.measurement.episodes) == (12, 12)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": "models:/missing@champion"}, RegistryError, "no model at models:/missing@champion"),
        ({"model": "models:/evaluated"}, RegistryError, "is not the address of a model"),
        ({"scenarios_file": "scenarios.xml"}, ConfigError, "name a file that ends in .jsonl"),
        ({"num_episodes": 0}, ConfigError, "Ask for more"),
    ],
)
def test_what_cannot_be_evaluated_is_said(
    config: PipelineConfig, options: dict[str, Any], error: type[Exception], message: str
):
    """Before anything is played."""
    with pytest.raises(error, match=message):
        _evaluate(config, **options)


def test_the_command_measures_and_writes(config: PipelineConfig, tmp_path: Path):
    """A table for people, a document for machines; a champion that is not there is wrong input."""
    path, output = tmp_path / "config.yaml", tmp_path / "found.json"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    arguments = ["evaluate", str(path), "--model", str(DESK_MODEL), "--num-episodes", "4", "--output-file", str(output)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "4 episodes" in result.output
    assert EvaluationDocument.model_validate_json(output.read_bytes()).measurement.episodes == 4
    refused = CliRunner().invoke(app, ["evaluate", str(path), "--set", "registry.model_name=missing"])
    assert refused.exit_code == 2
    assert "no model at models:/missing@champion" in refused.stderr
