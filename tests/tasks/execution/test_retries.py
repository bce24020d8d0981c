"""Faults that are tried again: of stages, and of a flow's own work with an S3 server that is away."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from prefect.states import State, StateType

from grpo import progress
from grpo.artifacts import ArtifactStore
from grpo.errors import ConfigError, GRPOError, NoEffect
from grpo.registry.retention import Retention, run_owner
from grpo_tasks.execution import retries
from grpo_tasks.execution.retries import is_transient, patient
from tests.chaos.proxy import Proxy
from tests.doubles import put_file
from tests.object_store import object_store

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ConnectionError("reset"), True),
        (ConnectionResetError("peer"), True),
        (TimeoutError("slow"), True),
        (BrokenExecutor("worker died"), True),
        (GRPOError("bad"), False),
        (NoEffect("none"), False),
        (ValueError("bug"), False),
    ],
)
def test_only_what_a_second_try_can_mend_is_retried(error: Exception, again: bool):
    """Lost connections and workers are; an error of ours or in the code is not."""
    state: State[object] = State(type=StateType.FAILED, data=error)
    tried = SimpleNamespace(name="rollout", run_count=1)
    assert is_transient(tried, tried, state) is again  # type: ignore[arg-type]


def test_a_reference_is_kept_when_the_store_is_back(monkeypatch: pytest.MonkeyPatch):
    """The store refuses until the first try has failed; that is reported, and the second try holds."""
    monkeypatch.setattr(retries, "PAUSES_S", (0.01, 0.01))
    reported: list[str] = []
    with object_store(monkeypatch) as url, Proxy(urlsplit(url).port or 0) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        store = ArtifactStore("s3://grpo/patience")
        checkpoint = put_file(store, "checkpoint", ".txt", lambda path: path.write_text("weights"))
        retention = Retention(store)

        def comes_back(text: str, *_: object) -> None:
            reported.append(text)
            proxy.mode = "pass"

        proxy.mode = "refuse"
        with progress.observed(comes_back):
            patient(retention.keep)(checkpoint, run_owner("short"))
        assert retention.kept(run_owner("short")) == [checkpoint]
    assert len(reported) == 1
    assert reported[0].startswith("keep is tried again in 0.01 s: ConnectionError: s3://grpo/patience")


def test_what_a_retry_cannot_fix_is_raised_at_once_and_the_rest_after_the_last_pause(monkeypatch: pytest.MonkeyPatch):
    """A wrong setting is tried once, a server that stays away once more than there are pauses."""
    monkeypatch.setattr(retries, "PAUSES_S", (0.01, 0.01))
    tries: list[str] = []

    @patient
    def look(error: Exception) -> None:
        tries.append(type(error).__name__)
        raise error

    with pytest.raises(ConfigError):
        look(ConfigError("wrong"))
    with pytest.raises(TimeoutError):
        look(TimeoutError("slow"))
    assert tries == ["ConfigError", "TimeoutError", "TimeoutError", "TimeoutError"]
