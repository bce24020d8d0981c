"""GPU slots, with a real Prefect server; which device a process has is the only thing pretended."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from prefect.client.orchestration import get_client

from grpo.config.pipeline import EvaluationSettings
from grpo.config.training import TrainingSettings
from grpo.errors import ConfigError
from grpo_tasks.execution import gpu_slots
from grpo_tasks.execution.gpu_slots import LIMIT, holds_gpu_slot

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def one_slot(server: str) -> None:
    """A server for one device."""
    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(LIMIT, 1)


class Work:
    """Counts how many are at work at once."""

    def __init__(self) -> None:
        self.most = self._now = 0
        self._guard = threading.Lock()

    def __call__(self, seconds: float) -> float:
        """Work for so long."""
        with self._guard:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(seconds)
        with self._guard:
            self._now -= 1
        return seconds


def _at_once(work: Work) -> int:
    """The most that were at work when three were started together."""

    def stage(seconds: float) -> float:
        return work(seconds)

    held = holds_gpu_slot(stage)
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(held, [0.3] * 3)) == [0.3] * 3
    return work.most


@pytest.mark.usefixtures("one_slot")
def test_two_stages_never_share_a_device(monkeypatch: pytest.MonkeyPatch):
    """One slot: the others wait for it, and all get their turn."""
    monkeypatch.setattr(gpu_slots, "on_cuda", lambda: True)
    assert _at_once(Work()) == 1


@pytest.mark.usefixtures("one_slot")
def test_on_the_cpu_stages_do_not_wait(monkeypatch: pytest.MonkeyPatch):
    """The limit is for devices: three are at work at once, each until the others are."""
    monkeypatch.setattr(gpu_slots, "on_cuda", lambda: False)
    meeting = threading.Barrier(3, timeout=240)
    held = holds_gpu_slot(meeting.wait)
    with ThreadPoolExecutor(3) as pool:
        assert sorted(future.result() for future in [pool.submit(held) for _ in range(3)]) == [0, 1, 2]


@pytest.mark.usefixtures("one_slot")
def test_a_stage_that_fails_gives_its_slot_back(monkeypatch: pytest.MonkeyPatch):
    """The next one need not wait for a lease to end."""
    monkeypatch.setattr(gpu_slots, "on_cuda", lambda: True)

    @holds_gpu_slot
    def fail() -> None:
        raise ValueError("out of memory")

    with pytest.raises(ValueError, match="out of memory"):
        fail()
    with get_client(sync_client=True) as client:
        assert client.read_global_concurrency_limit_by_name(LIMIT).active_slots == 0


def test_a_server_without_the_limit_gets_it_once(server: str, monkeypatch: pytest.MonkeyPatch):
    """Three stages that start at once create one limit, of one slot: this machine counts as one with a device."""
    monkeypatch.setattr(gpu_slots, "on_cuda", lambda: True)
    monkeypatch.setattr(gpu_slots, "LIMIT", "created-by-the-first")
    assert _at_once(Work()) == 1
    with get_client(sync_client=True) as client:
        assert client.read_global_concurrency_limit_by_name("created-by-the-first").limit == 1


def test_stages_with_a_model_hold_a_slot_for_each_of_their_processes(monkeypatch: pytest.MonkeyPatch):
    """They ask before they begin, and begin when they have it."""
    from grpo_tasks.evaluate import evaluate
    from grpo_tasks.rollout import rollout
    from grpo_tasks.train import train

    asked: list[tuple[str, int]] = []

    class Refused(Exception):
        """The slot is not given."""

    def concurrency(name: str, *, occupy: int, **_: object) -> None:
        asked.append((name, occupy))
        raise Refused

    monkeypatch.setattr(gpu_slots, "on_cuda", lambda: True)
    monkeypatch.setattr("prefect.concurrency.sync.concurrency", concurrency)
    monkeypatch.setattr(gpu_slots, "create_slots", lambda: None)
    monkeypatch.setattr(gpu_slots, "_check_slots", lambda processes: None)
    for stage, inputs in (
        (rollout, {}),
        (train, {"settings": TrainingSettings(processes=2)}),
        (evaluate, {"settings": EvaluationSettings()}),
    ):
        with pytest.raises(Refused):
            stage.function(**inputs)
    assert asked == [("gpu", 1), ("gpu", 2), ("gpu", 1)]


@pytest.mark.usefixtures("one_slot")
def test_more_processes_than_slots_are_refused_at_once(monkeypatch: pytest.MonkeyPatch):
    """Prefect would refuse them for good, after the rollout, without a remedy."""
    monkeypatch.setattr(gpu_slots, "on_cuda", lambda: True)

    @holds_gpu_slot
    def update(settings: TrainingSettings) -> None:
        raise AssertionError("began without its slots")

    with pytest.raises(ConfigError, match=r"processes 2 needs .* it has 1\. Call `grpo deploy --gpu-slots 2`"):
        update(TrainingSettings(processes=2))
