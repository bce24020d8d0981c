"""Dry run of a run, compared with the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo.config.pipeline import PipelineConfig
from grpo.errors import DataError
from grpo.evaluation.report import read_report
from grpo.tables import read_trajectories
from tests.doubles import changed, short_run
from tests.places import ROOT

pytestmark = pytest.mark.filterwarnings("ignore")


def _config(folder: Path) -> dict[str, Any]:
    """Two iterations on the embedded desk."""
    return short_run(
        folder,
        name="planned",
        seed=5,
        scenarios={"limit": 16},
        rollout={"max_new_tokens": 32},
        registry={"model_name": "planned"},
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, home: Path, server: str) -> dict[str, Any]:
    """The config of a run that went to its end."""
    from grpo_flows.train import train

    config = _config(tmp_path_factory.mktemp("planned"))
    train(PipelineConfig.model_validate(config))
    return config


def _plan(config: dict[str, Any], **sections: Any) -> Any:
    from grpo_flows.dry_run import dry_run

    return dry_run(PipelineConfig.model_validate(changed(config, **sections)))


def _cached(plan: Any) -> dict[str, tuple[int, int]]:
    return {stage.name: (stage.cached, stage.runs) for stage in plan.stages}


def test_a_finished_run_is_cached_except_for_the_comparison(ran: dict[str, Any]):
    """Two iterations and the candidate's held-out side are hits; the champion may be another now."""
    plan = _plan(ran)
    found = _cached(plan)
    assert found["ingest"] == found["validate"] == found["split"] == found["load_base"] == (1, 1)
    assert (found["rollout"], found["score"], found["train"]) == ((3, 4), (3, 4), (2, 2))
    assert found["evaluate"] == (0, 1)
    assert {stage.rest for stage in plan.stages} == {"", "unknown: depends on the current champion"}


def test_the_plan_has_the_memory_of_the_servers_that_the_run_starts(ran: dict[str, Any]):
    """Each holds two versions of 1,262,880 weights with 4 bytes. Without a count there are none."""
    servers = _plan(ran, rollout={"backend": "servers", "servers": {"count": 2}}).servers
    assert (servers.servers, servers.weights) == (2, 2 * 1_262_880 * 4)
    assert servers.cache > 0
    assert servers.describe(str).startswith("rollout servers: the run starts 2 on this machine when the first rollout")
    assert _plan(ran).servers is None


def test_what_the_plan_calls_cached_is_what_the_run_finds(ran: dict[str, Any], home: Path):
    """With another learning rate the first rollout and its scores are hits, and no update; the run agrees."""
    from grpo_flows.train import train

    other = changed(ran, name="faster", training={"learning_rate": 4e-4})
    plan = _plan(other)
    found = _cached(plan)
    assert (found["rollout"], found["score"], found["train"]) == ((1, 4), (1, 4), (0, 2))
    rest = {stage.name: stage.rest for stage in plan.stages}
    assert rest["train"] == "one is computed, the others depend on it"
    assert rest["rollout"] == rest["gate"] == "unknown until train has run"
    train(PipelineConfig.model_validate(other))
    hits = {stage.name: stage.cached for stage in read_report(home / "faster" / "report.json").stages}
    assert hits["train"] == 0
    assert hits["rollout"] == 1 + 1  # and the champion's held-out side, because the champion is the base again
    assert hits["split"] == found["split"][0]


def test_a_lost_artifact_is_not_a_hit(ran: dict[str, Any], tmp_path: Path):
    """The plan looks at what lies in the store, not only at what is remembered of it."""
    elsewhere = _plan(ran, store=str(tmp_path / "elsewhere"))
    assert _cached(elsewhere)["ingest"] == (0, 1)
    assert {stage.name: stage.rest for stage in elsewhere.stages}["load_base"] == "computed"


def test_the_token_bound_holds_and_the_mean_is_that_of_the_rollouts(ran: dict[str, Any]):
    """All that was played: nothing is longer than the bound, and the mean is what the tables say."""
    plan = _plan(ran)
    tokens = [
        trajectory.completion_tokens
        for path in (Path(ran["store"]) / "rollout").glob("*.parquet")
        for trajectory in read_trajectories(path)
    ]
    assert max(tokens) <= plan.max_completion_tokens == min(8 * 32, 512)
    assert plan.scenarios == (16, 16)
    assert (plan.episodes.train, plan.episodes.heldout) == (2 * 6 * 4, 2 * 16)
    assert sum(tokens) <= plan.max_completion_tokens * plan.episodes.all
    assert 0 < plan.mean_completion_tokens < plan.max_completion_tokens


def test_demonstrations_and_pairs_that_the_run_would_refuse_are_refused(ran: dict[str, Any], tmp_path: Path):
    """Before anything is computed, with the line."""
    broken = tmp_path / "lines.jsonl"
    broken.write_text('{"messages": [{"role": "user", "content": "Hi."}]}\n')
    with pytest.raises(DataError, match=r"lines\.jsonl, line 1 is not a conversation"):
        _plan(ran, sft={"demonstrations": {"kind": "jsonl", "path": str(broken)}})
    with pytest.raises(DataError, match=r"lines\.jsonl, line 1 is not a preference pair"):
        _plan(ran, dpo={"pairs": {"kind": "jsonl", "path": str(broken)}})


HEAVY = ("torch", "transformers.modeling_utils", "prefect", "mlflow", "great_expectations")


def test_a_dry_run_leaves_nothing_behind_and_loads_no_heavy_package(tmp_path: Path):
    """No home, no store, no file; no server, since it could not have a port; no model is built."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(_config(tmp_path)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW"))}
    environment |= {"GRPO_HOME": str(tmp_path / "home"), "PREFECT_SERVER_API_PORT": "1"}
    script = (
        "import sys\nfrom grpo_cli.app import app\n"
        "try:\n    app(['train', sys.argv[1], '--dry-run'])\n"
        f"finally:\n    print('loaded', [name for name in {HEAVY} if name in sys.modules])"
    )
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("loaded []\n")
    assert "\nchat format: tools and calls in the template's own form (JSON); a later system " in done.stdout
    assert "valid configuration of run planned" in done.stdout
    assert "scenarios: 16 to train on, 16 held out" in done.stdout
    episodes = "episodes: at most 48 for training, and for the evaluation of both policies 32"  # 2 x 6 x 4; 2 x 16 x 1
    assert episodes in done.stdout
    assert "time: at most about " in done.stdout
    rows = [line.split("│") for line in done.stdout.splitlines() if line.startswith("│")]
    assert {row[4].strip() for row in rows} == {"computed"}  # nothing is in the store
    assert done.stderr == ""
    assert [found.name for found in tmp_path.iterdir()] == ["config.yaml"]
