from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from grpo.config.serving import RolloutServingSettings
from grpo.evaluation.report import read_report
from grpo.evaluation.schema import ReportDocument
from grpo.policy.servers.policy import KEY
from grpo.serving.access.keys import KeyStore
from tests.doubles import changed, short_run
from tests.e2e.served import own_environment
from tests.grpo.policy.servers.relays import relay
from tests.grpo.serving.chat_servers import chat_server
from tests.places import ROOT
from tests.vllm.engine import MARKS, MEMORY
from tests.vllm.servers import ROLLOUTS, vllm_server

pytestmark = [*MARKS, pytest.mark.usefixtures("server")]

VLLM = {"backend": "vllm", "gpu_memory_utilization": MEMORY}


def _train(folder: Path, clerk: Path, server: str, **sections: object) -> ReportDocument:
    """Report of a run of two iterations, judged on 24 held-out scenarios."""
    config = short_run(folder, name=folder.name)
    config = changed(
        config,
        policy={"model": str(clerk)},
        scenarios={"limit": 48, "validation_fraction": 0.5},
        evaluation={"samples": 2},
        training={"importance_sampling_cap": 2.0},
    )
    folder.mkdir()
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(changed(config, **sections)))
    done = subprocess.run(
        [sys.executable, "-m", "grpo_cli", "train", str(path)],
        env=own_environment(folder, server),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode in (0, 3), done.stdout[-4000:] + done.stderr[-4000:]
    return read_report(folder / folder.name / "report.json")


def test_a_run_that_vllm_plays_has_the_held_out_result_of_our_own_backend(clerk: Path, tmp_path: Path, server: str):
    """Champion and candidate: zero lies in the interval of the difference of the two runs' means."""
    ours = _train(tmp_path / "ours", clerk, server)
    theirs = _train(tmp_path / "theirs", clerk, server, rollout=VLLM)
    assert ours.evaluation is not None
    assert theirs.evaluation is not None
    assert ours.lineage.champion_policy == theirs.lineage.champion_policy
    assert theirs.lineage.candidate_policy != theirs.lineage.champion_policy
    for side in ("champion", "candidate"):
        own, other = (getattr(report.evaluation.overall, side) for report in (ours, theirs))
        print(f"{side}: ours {own.mean:.3f} [{own.low:.3f}, {own.high:.3f}], vLLM {other.mean:.3f}")
        half_width = math.hypot((own.high - own.low) / 2, (other.high - other.low) / 2)
        assert abs(own.mean - other.mean) <= half_width


def test_a_run_of_adapters_is_played_by_vllm(clerk: Path, tmp_path: Path, server: str):
    """Adapters are trained on vLLM's rollouts, and both sides of the evaluation are played by it."""
    report = _train(
        tmp_path / "adapters", clerk, server, rollout=VLLM, training={"lora": {"r": 4}, "importance_sampling_cap": 2.0}
    )
    assert report.evaluation is not None
    assert report.evaluation.failed_share == 0
    assert report.lineage.candidate_policy != report.lineage.champion_policy


def test_a_run_on_a_vllm_server_and_one_of_ours(
    clerk: Path, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
):
    """Two iterations in windows that overlap the updates, with turns on both servers, in the weights of each update."""
    keys = KeyStore(tmp_path / "keys.json")
    monkeypatch.setenv(KEY, keys.create("trainer", ["rollout"]))
    with (
        vllm_server(clerk, tmp_path, *ROLLOUTS) as vllm,
        chat_server(tmp_path, rollouts=RolloutServingSettings()) as ours,
        relay(vllm.url) as left,
        relay(ours.url) as right,
    ):
        servers = {"backend": "servers", "servers": [left.url, right.url], "shards": 1}
        report = _train(tmp_path / "both", clerk, server, rollout={**servers, "mode": "continuous"})
    assert report.evaluation is not None
    assert report.evaluation.failed_share == 0
    assert report.lineage.candidate_policy != report.lineage.champion_policy
    for relayed in (left, right):
        assert {body["version"] for body in relayed.turns} >= {
            report.lineage.champion_policy,
            report.lineage.candidate_policy,
        }
