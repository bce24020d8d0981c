"""Files that start the nodes of a training: the Job of Kubernetes, the script for Slurm, and the tasks of SkyPilot."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from grpo.config.training import TrainingSettings
from tests.places import ROOT

FOLDER = ROOT / "deployments" / "training"
CLAIM, JOB = yaml.safe_load_all((FOLDER / "job.yaml").read_text(encoding="utf-8"))
TASK = yaml.safe_load((FOLDER / "skypilot.yaml").read_text(encoding="utf-8"))
NODES = 2

_STUB = """#!/bin/bash
echo "$@" >> "$CALLS"
case "$*" in *train-node*) exec sleep 60;; esac
until grep -q train-node "$CALLS"; do sleep 0.1; done
"""


def _pod() -> dict[str, Any]:
    return JOB["spec"]["template"]["spec"]


def test_the_job_is_what_the_api_server_takes():
    """Checked against the schemas of Kubernetes: unknown fields and wrong types are refused."""
    for document in (CLAIM, JOB):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        assert document["metadata"]["namespace"] == "grpo"


def test_all_pods_run_at_once_and_the_first_decides():
    """As many as the nodes of the training, on one volume that several pods may write; the Job ends with pod 0."""
    spec = JOB["spec"]
    (container,) = _pod()["containers"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (NODES, NODES, "Indexed")
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    assert f"training.nodes={NODES} " in container["args"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert "training.processes=8 " in container["args"][0]
    volumes = {volume["name"]: volume for volume in _pod()["volumes"]}
    assert volumes.keys() == {mount["name"] for mount in container["volumeMounts"]}
    assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == CLAIM["metadata"]["name"]
    assert CLAIM["spec"]["accessModes"] == ["ReadWriteMany"]


def test_each_pod_runs_its_command(tmp_path: Path):
    """The shell of the container with a stub of grpo: pod 0 trains, pod 1 follows, and their folder is private."""
    (container,) = _pod()["containers"]
    (tmp_path / "grpo").write_text('#!/bin/bash\necho "$@"\n')
    (tmp_path / "grpo").chmod(0o755)
    nodes = tmp_path / "nodes"
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "GRPO_NODES": str(nodes)}
    printed = [
        subprocess.run(
            [*container["command"], *container["args"]],
            env={**variables, "JOB_COMPLETION_INDEX": str(index)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for index in range(NODES)
    ]
    assert printed[1] == "train-node"
    assert printed[0].startswith("train /shared/run.yaml ")
    assert nodes.stat().st_mode & 0o777 == 0o700
    overrides = dict(word.split("=") for word in shlex.split(printed[0]) if "=" in word)
    training = {name.removeprefix("training."): value for name, value in overrides.items() if name != "store"}
    assert TrainingSettings.model_validate(training).workers == 16
    assert overrides["store"] == "/shared/artifacts"


def test_the_script_starts_every_node_of_a_slurm_job_and_ends_with_the_first(tmp_path: Path):
    """With a stub of srun: the others follow until the run of the first is over, and leave nothing behind."""
    (tmp_path / "srun").write_text(_STUB)
    (tmp_path / "srun").chmod(0o755)
    calls = tmp_path / "calls"
    calls.touch()
    variables = {"SHARED": str(tmp_path), "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3", "CALLS": str(calls)}
    script = [str(FOLDER / "slurm.sh"), "run.yaml"]
    environment = {**os.environ, **variables, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PROCESSES": "4"}
    ended = subprocess.run(script, env=environment, timeout=240, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    others, first = sorted(calls.read_text().splitlines(), key=lambda line: "train-node" not in line)
    assert others == "--nodes=2 --ntasks=2 --relative=1 grpo train-node"
    assert first == (
        f"--nodes=1 --ntasks=1 --relative=0 grpo train run.yaml --set store={tmp_path}/artifacts "
        "--set training.nodes=3 --set training.processes=4 --set training.sharding=sharded"
    )
    assert (tmp_path / "nodes-7").stat().st_mode & 0o777 == 0o700


def test_the_nodes_of_skypilot_train_and_end_together(tmp_path: Path):
    """The commands of the task with a stub of grpo, one process per rank: the others end with the first."""
    (tmp_path / "grpo").write_text(_STUB)
    (tmp_path / "grpo").chmod(0o755)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    calls = tmp_path / "calls"
    calls.touch()
    commands = TASK["run"].replace("/shared/", f"{tmp_path}/shared/").replace("sleep 5", "sleep 0.1")
    (tmp_path / "shared").mkdir()
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(calls), "CONFIG": "run.yaml"}
    counts = {"SKYPILOT_TASK_ID": "sky-7", "SKYPILOT_NUM_NODES": str(NODES), "SKYPILOT_NUM_GPUS_PER_NODE": "8"}
    nodes = [
        subprocess.Popen(
            ["bash", "-c", commands], cwd=tmp_path, env={**environment, **counts, "SKYPILOT_NODE_RANK": str(rank)}
        )
        for rank in range(NODES)
    ]
    assert [node.wait(timeout=60) for node in nodes] == [0, 0]
    first, follower = sorted(calls.read_text().splitlines(), key=lambda line: line == "train-node")
    assert follower == "train-node"
    assert first == (
        f"train run.yaml --set store={tmp_path}/shared/artifacts --set training.nodes=2 --set training.processes=8 "
        "--set training.sharding=sharded"
    )
    assert (tmp_path / "shared" / "nodes-sky-7").stat().st_mode & 0o777 == 0o700
    assert TASK["num_nodes"] == NODES
    assert list(TASK["volumes"]) == ["/shared"]
    volume = yaml.safe_load((FOLDER / "skypilot_volume.yaml").read_text(encoding="utf-8"))
    assert TASK["volumes"]["/shared"] == volume["name"]


def test_the_task_of_one_machine_uses_what_it_declares():
    """The one in docs/remote.md: its launch gives every secret, and its commands read every other variable."""
    page = (ROOT / "docs" / "remote.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(# sky.yaml\n.*?)```", page, re.DOTALL)
    task = yaml.safe_load(text)
    assert set(task) <= SKYPILOT
    assert set(TASK) <= SKYPILOT
    (launch,) = re.findall(r"^    (sky launch sky\.yaml .*\n.*)$", page, re.MULTILINE)
    assert sorted(re.findall(r"--secret (\w+)", launch)) == sorted(task["secrets"])
    assert set(re.findall(r"\$(\w+)", task["run"])) | {"MLFLOW_TRACKING_URI"} == set(task["envs"])


SKYPILOT = {
    *("name", "workdir", "num_nodes", "resources", "envs", "secrets", "volumes", "file_mounts"),
    *("setup", "run", "config"),
}
"""Fields of a task in SkyPilot's documentation."""
