"""The real flow on the real tiny model, against a real Prefect server and a real MLflow store."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from grpo.config.pipeline import PipelineConfig
from grpo.errors import ConfigError, DataError, NoEffect, NoLearningSignal, PolicyError, RegistryError
from grpo.evaluation.report import read_report
from grpo.evaluation.schema import ReportDocument, StageTiming
from grpo.storage.locks import same_use
from grpo_tasks.registry import registry
from tests.doubles import changed, short_run, with_a_conversation
from tests.grpo.registry.making import ANNA, put_version
from tests.places import DESK_SCENARIOS, ROOT

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]


def run(config: dict[str, Any], home: Path, *, name: str = "short", **sections: Any) -> ReportDocument:
    """Run the flow and read its report back."""
    from grpo_flows.train import train

    plan = PipelineConfig.model_validate(changed(config, name=name, **sections))
    train(plan)
    return read_report(home / name / "report.json")


def cached(document: ReportDocument) -> dict[str, tuple[int, int]]:
    """(cached, runs) of each stage."""
    return {stage.name: (stage.cached, stage.runs) for stage in document.stages}


@pytest.fixture(scope="module")
def module_config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A config that the tests of this file share, so that one of them pays for the first run."""
    folder = tmp_path_factory.mktemp("short")
    return short_run(folder, rollout={"max_new_tokens": 32}, registry={"model_name": "short"})


@pytest.fixture(scope="module")
def first(module_config: dict[str, Any], home: Path, server: str) -> ReportDocument:
    """The first run of the shared config."""
    return run(module_config, home)


def test_a_run_is_named_by_its_config_and_overrides(module_config: dict[str, Any], first: ReportDocument):
    """In Prefect's list two runs of one config with other settings are told apart."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName

    from grpo_flows.train import train

    plan = PipelineConfig.model_validate(changed(module_config, name="short"))
    train(plan, overrides=("seed=0", "save_total_limit=null"))
    with get_client(sync_client=True) as client:
        for name in ("short", "short: seed=0, save_total_limit=null"):
            assert client.read_flow_runs(flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=[name])))


def test_a_run_leaves_a_complete_record(first: ReportDocument, home: Path):
    """Report, Data Docs, registered version with lineage tags, MLflow run with metrics and the report."""
    assert first.decision.verdict in ("promote", "refuse")
    assert [i.index for i in first.iterations] == [0, 1]
    assert (first.ingestion.records, first.ingestion.train, first.ingestion.heldout) == (864, 24, 24)
    assert (home / "short" / "report.html").stat().st_size > 10_000
    assert first.ingestion.data_docs is not None
    assert (home / "short" / first.ingestion.data_docs).is_file()
    version = registry().find("short", first.lineage.run)
    assert version is not None
    assert version.tags["policy"] == first.lineage.candidate_policy
    assert version.tags["verdict"] == first.decision.verdict
    client = registry().client
    logged = client.get_run(version.run_id)
    assert logged.info.status == "FINISHED"
    assert logged.data.params["training.iterations"] == "2"
    assert len(client.get_metric_history(version.run_id, "reward")) == 2
    assert {f.path for f in client.list_artifacts(version.run_id)} >= {"report.html", "report.json", "report.png"}


def test_the_same_run_again_is_all_cache_and_the_same_decision(first: ReportDocument, module_config: Any, home: Path):
    """Every stage a hit, the same policies, numbers and model version."""
    again = run(module_config, home)
    assert all(hits == runs for hits, runs in cached(again).values()), cached(again)
    assert again.decision == first.decision
    assert again.lineage == first.lineage
    assert again.evaluation == first.evaluation


def test_another_reward_weight_recomputes_what_depends_on_it(first: ReportDocument, module_config: Any, home: Path):
    """Ingest, validate, split, base, and the rollouts of the base are hits; scores and everything after are not."""
    reward = [{"kind": "task_completion", "weight": 0.6}, {"kind": "checks", "weight": 0.4}]
    found = cached(run(module_config, home, name="reweighted", reward=reward))
    for name in ("ingest", "validate", "split", "load_base"):
        assert found[name] == (1, 1), name
    # iteration 0 and the champion's held-out split are hits; iteration 1 and the candidate's are not
    assert found["rollout"] == (2, 4)
    for name in ("score", "train", "evaluate", "register"):
        assert found[name][0] == 0, name


@pytest.mark.parametrize("harm", ["delete", "damage"])
def test_a_lost_artifact_is_computed_again_and_said(
    first: ReportDocument, module_config: Any, home: Path, caplog: pytest.LogCaptureFixture, harm: str
):
    """Scored rollouts disappear or change: that stage runs again, the rest stays, the decision too."""
    for victim in (Path(module_config["store"]) / "scored").glob("*.parquet"):
        if harm == "delete":
            victim.unlink()
        else:
            victim.write_bytes(victim.read_bytes()[:-1] + b"x")
    with caplog.at_level("WARNING", logger="grpo_tasks.execution.executor"):
        again = run(module_config, home)
    assert "score is computed again" in caplog.text
    assert cached(again)["score"] == (0, 4)
    assert cached(again)["train"] == (2, 2)
    assert again.decision == first.decision


def test_a_mixture_with_a_conversation_that_expects_nothing_is_trained_and_judged(
    module_config: Any, home: Path, tmp_path: Path
):
    """A retraining names the metric success, and no gate asks the conversation for an outcome."""
    gates = [{"kind": "category", "metric": "success", "max_drop": 1.0}, {"kind": "kl"}]
    document = run(
        module_config,
        home,
        name="mixed",
        scenarios=with_a_conversation(tmp_path),
        gates=gates,
        registry={"model_name": "mixed"},
    )
    assert (document.decision.verdict, len(document.decision.checks)) == ("promote", 2)


def test_a_constant_reward_ends_with_no_learning_signal(module_config: Any, home: Path):
    """Nothing is trained, nothing registered, and the report says why."""
    with pytest.raises(NoLearningSignal):
        run(
            module_config,
            home,
            name="constant",
            reward=[{"kind": "constant", "weight": 1.0}],
            registry={"model_name": "constant"},
        )
    document = read_report(home / "constant" / "report.json")
    assert document.decision.verdict == "failed"
    assert "no learning signal" in document.decision.reason
    assert [record.part for record in document.rollouts] == [0]
    assert document.explanation is not None
    assert document.explanation.diagnoses[0].kind == "constant_reward"
    assert registry().find("constant", document.lineage.run) is None


def test_a_learning_rate_that_changes_no_weight_fails_as_no_effect(module_config: Any, home: Path):
    """A run that changed nothing does not report success."""
    with pytest.raises(NoEffect, match="learning rate 1e-30"):
        run(
            module_config,
            home,
            name="frozen",
            training={"iterations": 1, "learning_rate": 1e-30},
            registry={"model_name": "frozen"},
        )
    document = read_report(home / "frozen" / "report.json")
    assert (document.decision.verdict, document.evaluation) == ("failed", None)
    assert document.explanation is not None
    assert document.explanation.diagnoses[0].kind == "learning_rate_too_small"


@pytest.mark.parametrize(
    ("ends", "error", "reason"),
    [
        ("raise KeyError('stock')", ConfigError, "gate broken_gates:late raised KeyError: 'stock'"),
        ("sys.exit(0)", BaseException, "SystemExit: 0"),
        (
            "signal.raise_signal(signal.SIGINT); [time.sleep(0.1) for _ in range(3000)]",
            KeyboardInterrupt,
            "it was stopped before its end. The same command",
        ),
    ],
    ids=["exception", "exit", "signal"],
)
def test_a_run_that_fails_after_its_first_update_writes_its_report(
    module_config: Any, home: Path, tmp_path: Path, ends: str, error: type[BaseException], reason: str
):
    """The iterations so far and the reason, whatever ends it; the failure itself is raised as before.

    The gate may run in another thread than the one that handles the signal, so it waits for it until it is ended. It
    passes when it is tried before the run.
    """
    name = f"ended-{ends[:3]}"
    gate = (
        "import signal\nimport sys\nimport time\n\nfrom grpo.evaluation.schema import GateCheck\n\n\n"
        f"def late(evidence):\n    if evidence.candidate[0].policy_hash != 'candidate':\n        {ends}\n"
        "    return GateCheck.of('late', 1.0, '>=', 0.0, 'it comes')\n"
    )
    module = f"broken_gates_{ends[:3]}"
    (tmp_path / f"{module}.py").write_text(gate)
    with pytest.raises(error):
        run(
            module_config,
            home,
            name=name,
            import_from=str(tmp_path),
            gates=[{"kind": "python", "object": f"{module}:late"}],
            registry={"model_name": name},
        )
    document = read_report(home / name / "report.json")
    assert document.decision.verdict == "failed"
    assert reason.replace("broken_gates", module) in document.decision.reason
    assert [iteration.index for iteration in document.iterations] == [0, 1]
    assert (home / name / "report.html").is_file()


def _gone(*arguments: object, **inputs: object) -> None:
    raise ConnectionError("MLflow went away")


def test_a_promotion_stands_in_the_report_of_a_run_that_fails_after_it(
    first: ReportDocument, module_config: Any, home: Path, monkeypatch: pytest.MonkeyPatch
):
    """MLflow goes away when the report is recorded: the file names the new champion, its evaluation and the failure."""
    monkeypatch.setattr("grpo_flows.train.report", _gone)
    gates = [{"kind": "category", "max_drop": 1.0}, {"kind": "kl"}]
    with pytest.raises(ConnectionError, match="went away"):
        run(module_config, home, name="gone", gates=gates, registry={"model_name": "gone"})
    champion = registry().champion("gone")
    assert champion is not None
    document = read_report(home / "gone" / "report.json")
    assert document.decision.verdict == "promote"
    assert document.decision.reason.endswith("Then the run failed: ConnectionError: MLflow went away")
    assert document.lineage.model_version == f"{champion.name} {champion.version}"
    assert document.evaluation is not None
    assert registry().find("gone", document.lineage.run) is not None


@pytest.mark.parametrize("broken", ["sft", "_document"], ids=["in the stage", "and no report can be made"])
def test_a_failed_fine_tuning_is_raised_and_reported(
    module_config: Any, home: Path, monkeypatch: pytest.MonkeyPatch, broken: str
):
    """Its updates come before the iterations; a report that cannot be made does not hide the failure."""
    monkeypatch.setattr("grpo_flows.pipeline.sft", _gone)
    if broken == "_document":
        monkeypatch.setattr("grpo_flows.train._document", lambda *arguments: 1 / 0)
    demonstrations = {"kind": "jsonl", "path": str(ROOT / "data" / "scenarios" / "support_desk_demonstrations.jsonl")}
    name = f"untuned-{broken.strip('_')}"
    with pytest.raises(ConnectionError, match="went away"):
        run(module_config, home, name=name, sft={"demonstrations": demonstrations}, registry={"model_name": name})
    page = home / name / "report.json"
    assert page.exists() == (broken == "sft")
    if page.exists():
        assert read_report(page).decision.reason == "ConnectionError: MLflow went away"


def test_a_negated_reward_makes_it_worse_and_the_gate_refuses(module_config: Any, home: Path):
    """Paid for failing, the policy fails more, and does not get to serve."""
    document = run(
        module_config,
        home,
        name="negated",
        scenarios={"limit": 32},
        reward=[{"kind": "checks", "weight": -1.0}],
        rollout={"scenarios": 8, "group_size": 8},
        training={"iterations": 3, "learning_rate": 1e-3, "groups_per_step": 2},
        registry={"model_name": "negated"},
    )
    assert document.evaluation is not None
    assert document.evaluation.overall.difference.mean < 0
    assert document.decision.verdict == "refuse"
    assert registry().champion("negated") is None


def test_no_run_is_judged_against_the_base_where_the_champion_is_missing(module_config: Any, home: Path):
    """Version 1 has served and was deleted: the run ends before anything is played, and names the remedies."""
    version = put_version(registry(), "bereft", "a", against="base")
    registry().promotions("bereft").promote(version, reason="gates", by=ANNA)
    registry().client.delete_model_version("bereft", str(version))
    with pytest.raises(RegistryError, match=r"was deleted\. `grpo promote models:/bereft/N"):
        run(module_config, home, name="bereft", seed=12, registry={"model_name": "bereft"})
    assert registry().versions("bereft") == []
    assert not (home / "bereft").exists(), "no report, as nothing was measured"


def test_two_runs_of_one_config_at_once_do_not_harm_each_other(module_config: Any, home: Path):
    """Both end with the same decision about the same policy, registered once."""
    found: list[ReportDocument] = []

    def go() -> None:
        found.append(run(module_config, home, name="twins", seed=11, registry={"model_name": "twins"}))

    threads = [threading.Thread(target=go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0].lineage == found[1].lineage
    assert found[0].decision == found[1].decision
    assert len(registry().client.search_model_versions("name = 'twins'")) == 1


def test_a_run_with_the_name_of_another_one_in_progress_is_refused(module_config: Any, home: Path):
    """Otherwise the first to end would remove the checkpoints of the other one, and replace its report."""
    with same_use(home / "services" / "runs" / "busy", "another config") as is_free:
        assert is_free
        with pytest.raises(ConfigError, match="a run named busy with other settings is in progress"):
            run(module_config, home, name="busy")
    assert not (home / "busy").exists()


FLAKY = """
from pathlib import Path
import json

def records():
    marker = Path({marker!r})
    if not marker.exists():
        marker.touch()
        raise ConnectionError("the source went away")
    for line in Path({path!r}).read_text().splitlines():
        yield json.loads(line)
"""


def test_a_dropped_connection_is_tried_again(
    module_config: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A source that fails once and then delivers: the run goes through."""
    (tmp_path / "flaky_source.py").write_text(FLAKY.format(marker=str(tmp_path / "tried"), path=str(DESK_SCENARIOS)))
    monkeypatch.syspath_prepend(tmp_path)
    scenarios = {"sources": [{"kind": "python", "object": "flaky_source:records"}]}
    document = run(module_config, home, name="flaky", scenarios=scenarios, registry={"model_name": "flaky"})
    assert (tmp_path / "tried").exists()
    assert document.ingestion.scenarios == 864


def test_scenarios_that_fail_an_expectation_stop_the_run_before_any_compute(
    module_config: Any, home: Path, tmp_path: Path
):
    """The same text on both declared sides is leakage; nothing is rolled out."""
    records = [json.loads(line) for line in DESK_SCENARIOS.read_text(encoding="utf-8").splitlines()[:30]]
    lines = [
        json.dumps({**records[k % 30], "id": f"s{k}", "split": "train" if k < 30 else "heldout"}) for k in range(60)
    ]
    (tmp_path / "leaky.jsonl").write_text("\n".join(lines))
    scenarios = {"sources": [{"kind": "jsonl", "path": str(tmp_path / "leaky.jsonl")}], "limit": None}
    store = tmp_path / "store"
    with pytest.raises(DataError, match=r"(?s)leak.*s0"):
        run(module_config, home, name="leaky", scenarios=scenarios, store=str(store))
    assert not (store / "rollout").exists()


def test_a_reward_that_a_probe_fools_stops_the_run_before_any_stage(module_config: Any, home: Path, tmp_path: Path):
    """Not even the scenarios are read."""
    reward, store = [{"kind": "keywords", "weight": 1.0}], tmp_path / "store"
    with pytest.raises(ConfigError, match=r"keywords can be hacked by .*accepted_exploits"):
        run(module_config, home, name="fooled", reward=reward, store=str(store))
    assert not (store / "scenarios").exists()
    assert not list(store.rglob("*.parquet"))


def test_a_model_without_chat_template_stops_before_any_rollout(
    module_config: Any, home: Path, tmp_path: Path, tiny_folder: Path
):
    """The error says what to set, and it is not tried three times."""
    import shutil

    folder = tmp_path / "bare"
    shutil.copytree(tiny_folder, folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(PolicyError, match="no chat template"):
        run(module_config, home, name="bare", policy={"model": str(folder)}, store=str(tmp_path / "store"))


def test_orchestration_is_the_time_outside_of_the_work_of_a_run():
    """Of 100 s, fine-tuning took 30 s, rollouts 40 s and the update 20 s; the base was loaded in 4 s."""
    from grpo_flows.train import orchestration_share

    seconds = {"load_base": 4.0, "sft": 18.0, "dpo": 12.0, "rollout": 40.0, "train": 20.0}
    timings = [StageTiming(name=name, runs=1, cached=0, compute_s=work, wall_s=work) for name, work in seconds.items()]
    assert orchestration_share(timings, 100.0) == pytest.approx(0.1)
