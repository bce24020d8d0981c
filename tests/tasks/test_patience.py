"""Work of a flow between its stages, with an S3 server that is away."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from grpo import progress
from grpo.artifacts import ArtifactStore
from grpo.errors import ConfigError
from grpo.registry.retention import Retention, run_owner
from grpo_tasks import stage
from grpo_tasks.patience import patient
from tests.chaos.proxy import Proxy
from tests.doubles import put_file
from tests.object_store import object_store

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_reference_is_kept_when_the_store_is_back(monkeypatch: pytest.MonkeyPatch):
    """The store refuses until the first try has failed; that is reported, and the second try holds."""
    monkeypatch.setattr(stage, "PAUSES_S", (0.01, 0.01))
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
    assert reported[0].startswith("keep in 0.01 s again: ConnectionError: s3://grpo/patience")


def test_what_a_retry_cannot_fix_is_raised_at_once_and_the_rest_after_the_last_pause(monkeypatch: pytest.MonkeyPatch):
    """A wrong setting is tried once, a server that stays away once more than there are pauses."""
    monkeypatch.setattr(stage, "PAUSES_S", (0.01, 0.01))
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
