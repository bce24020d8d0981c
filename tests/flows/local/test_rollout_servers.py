"""Real servers that a run starts: a rollout on them, one that is killed, their key, and their end."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from grpo import progress
from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.config.rollout import StartedServers
from grpo.errors import ConfigError, PolicyError
from grpo.policy.servers.policy import KEY, STARTED, server_urls
from grpo.tables import read_trajectories
from grpo.trajectories import Trajectory
from grpo_local.managed_process import ManagedProcess
from grpo_local.rollout_servers import RunServers, _service, remove_logs_of_ended_runs, rollout_servers
from grpo_tasks.execution.stage import Call
from tests.contents import files_with
from tests.doubles import short_run
from tests.flows.test_continuous import TRAINING, Executor
from tests.ports import own_port
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore")
ROLLOUT = {"backend": "servers", "shards": 1, "scenarios": 4, "group_size": 2, "max_new_tokens": 16}
TWO = {"count": 2, "threads": 1}


@pytest.fixture(scope="module")
def servers(home: Path) -> Iterator[RunServers]:
    """Two servers of a run, which start when they are needed."""
    with rollout_servers(StartedServers.model_validate(TWO)) as started:
        yield started


def _config(folder: Path, **rollout: Any) -> PipelineConfig:
    sections = short_run(folder, training={**TRAINING, "iterations": 2}, rollout={**ROLLOUT, **rollout})
    return PipelineConfig.model_validate(sections)


class OnServers(Executor):
    """Runs the stages here, and lets the servers start before a rollout.

    With `kills`, the first server is killed when the first episode of the second rollout has ended.
    """

    def __init__(self, servers: RunServers, *, kills: bool = False) -> None:
        super().__init__()
        self._servers, self.kills = servers, kills
        self.rollouts: list[list[Trajectory]] = []

    def run(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """See `grpo_tasks.execution.stage.Executor`."""
        self._servers.prepare(calls)
        with progress.observed(self._watch):
            results = super().run(calls)
        if calls[0].stage.name == "rollout":
            store = ArtifactStore(calls[0].inputs["store"])
            self.rollouts.append(list(read_trajectories(store.path(results[0].rollout))))
        return results

    def _watch(self, stage: str, done: int, total: int, numbers: dict[str, float]) -> None:
        if self.kills and stage == "rollout" and len(self.rollouts) == 1 and 0 < done < total:
            self.kills = False
            process = self._servers.services[0].process()
            assert process is not None
            process.kill()


class Trained(NamedTuple):
    """A run of which a server is killed in its second rollout."""

    folder: Path
    policies: list[str]
    rollouts: list[list[Trajectory]]


@pytest.fixture(scope="module")
def trained(servers: RunServers, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("started")
    assert [service.process() for service in servers.services] == [None, None]  # nothing was computed so far
    executor = OnServers(servers, kills=True)
    steps = executor.train(_config(folder, servers=TWO))
    assert not executor.kills
    return Trained(folder, [step.policy.policy for step in steps], executor.rollouts)


def test_a_run_on_started_servers_is_the_run_on_listed_ones(servers: RunServers, trained: Trained, tmp_path: Path):
    """The same episodes before and after the update, although a server of the first run was killed in the second one.

    Log-probabilities differ in their last digits, because a server batches other turns together. The server is
    restarted.
    """
    executor = OnServers(servers)
    executor.train(_config(tmp_path, servers=[service.url for service in servers.services]))
    assert [len(episodes) for episodes in trained.rollouts] == [8, 8]
    for started, listed in zip(trained.rollouts, executor.rollouts, strict=True):
        for mine, theirs in zip(started, listed, strict=True):
            assert mine.stop != "failed"
            assert (mine.scenario_id, mine.stop, mine.turns) == (theirs.scenario_id, theirs.stop, theirs.turns)
            assert mine.token_ids.tolist() == theirs.token_ids.tolist()
            assert np.abs(mine.sampler_logprobs - theirs.sampler_logprobs).max() < 2e-5
    assert trained.rollouts[0][0].policy_hash != trained.rollouts[1][0].policy_hash
    until("the killed server answers again", servers.services[0].address, patience_s=300)


def test_the_number_of_servers_is_not_part_of_the_identity(trained: Trained):
    """With one server instead of two, everything is cached, and no server is started."""
    with rollout_servers(StartedServers(count=1)) as other:
        executor = OnServers(other)
        steps = executor.train(_config(trained.folder, servers={"count": 1}))
        assert other.services[0].process() is None
    assert executor.computed == []
    assert [step.policy.policy for step in steps] == trained.policies


def test_the_key_is_in_no_file_and_no_command_line(servers: RunServers, trained: Trained, home: Path):
    """The servers have its hash, and it is not in their environment."""
    key = os.environ[KEY].encode()
    places = (trained.folder, home / "services", servers.services[0].home.parent)
    assert [path for place in places for path in place.rglob("keys.json")]
    assert not files_with(key, *places)
    process = servers.services[1].process()
    assert process is not None
    assert not [part for part in process.cmdline() if key.decode() in part]
    assert KEY not in process.environ()


def test_a_continuous_run_on_started_servers_is_repeated_from_its_windows(servers: RunServers, tmp_path: Path):
    """Each window has its episodes, and the second run computes nothing."""
    config = _config(tmp_path, servers=TWO, mode="continuous", max_staleness=1)
    first, second = OnServers(servers), Executor()
    steps = first.train(config)
    assert [len(first.episodes(config, window)) for window in range(2)] == [8, 8]
    assert [step.policy for step in second.train(config)] == [step.policy for step in steps]
    assert second.computed == []


def test_two_runs_at_once_share_no_port_key_and_folder(home: Path):
    """Each has its own environment, which ends with its block."""
    settings = StartedServers(count=2)
    before = {name: os.environ.get(name) for name in (KEY, STARTED)}
    with rollout_servers(settings) as first:
        key, urls = os.environ[KEY], server_urls(settings)
        with rollout_servers(settings) as second:
            assert os.environ[KEY] != key
            assert not set(server_urls(settings)) & set(urls)
        assert (os.environ[KEY], server_urls(settings)) == (key, urls)
    assert {name: os.environ.get(name) for name in (KEY, STARTED)} == before
    folders = [service.home for servers in (first, second) for service in servers.services]
    assert len(set(folders)) == 4
    assert not any(folder.exists() for folder in folders)


def test_a_server_that_does_not_start_is_one_sentence_with_the_end_of_its_log(tmp_path: Path):
    """The reason is the last line of the log."""
    arguments = ("no_such_module",)
    failing = ManagedProcess(
        name="rollout-server-0", home=tmp_path, arguments=arguments, port=own_port(), ends_with_parent=True
    )
    servers = RunServers([failing])
    with pytest.raises(ConfigError, match=r"rollout-server-0 ended at its start: .*No module named .*no_such_module"):
        servers.start()
    servers.stop()


def test_a_process_without_servers_of_its_run_names_the_commands_that_start_them(monkeypatch: pytest.MonkeyPatch):
    """A stage that another program calls has none."""
    monkeypatch.delenv(STARTED, raising=False)
    with pytest.raises(PolicyError, match=r"rollout.servers.count 2: the servers were not started for this process"):
        server_urls(StartedServers(count=2))


def test_only_logs_of_processes_of_this_machine_that_have_ended_are_removed(tmp_path: Path):
    """Another machine may share the home, and a run may have another folder for temporary files."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = {
        f"rollout-server-{host}-{process}-3f-0.log": host == socket.gethostname() and process == ended.pid
        for host in (socket.gethostname(), "other-machine")
        for process in (os.getpid(), ended.pid)
    }
    for name in names:
        (tmp_path / name).write_text("log")
    remove_logs_of_ended_runs(tmp_path)
    assert {name: not (tmp_path / name).exists() for name in names} == names


def test_a_store_that_does_not_answer_for_a_moment_is_asked_again(monkeypatch: pytest.MonkeyPatch):
    """The look for a stored rollout comes before the stage with its retries. The result is there, so nothing starts."""
    monkeypatch.setattr("grpo_tasks.execution.retries.PAUSES_S", (0.01,))
    answers = [ConnectionError("the store is away"), "a result"]

    def find(inputs: dict[str, Any]) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    stage: Any = SimpleNamespace(name="rollout", find=find)
    RunServers([]).prepare([Call(stage, {})])
    assert not answers


def test_started_servers_take_models_of_the_size_of_the_disk(tmp_path: Path):
    """The default for uploads is for servers that others reach. A model of 7 billion weights is larger."""
    (tmp_path / "home").mkdir()
    place = tmp_path / "servers"
    settings = StartedServers.model_validate(TWO)
    service = _service(settings, 0, 12345, folder=place, log=tmp_path / "log")
    document = yaml.safe_load((place / "0" / "serve.yaml").read_text())
    assert service.name == "rollout-server-0"
    assert document["rollouts"]["weights_bytes"] > 0.5 * shutil.disk_usage(tmp_path).free
