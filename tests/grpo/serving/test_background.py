"""Work beside the requests of a server."""

from __future__ import annotations

import asyncio

import pytest

from grpo.config.serving import EngineSettings
from grpo.serving.background import in_background, stop
from grpo.serving.engine.rollouts import Rollouts


def test_work_that_ends_by_an_error_is_reported_at_once_and_work_that_is_stopped_is_not():
    async def main() -> list[BaseException]:
        failures: list[BaseException] = []

        async def fail() -> None:
            raise ValueError("broken")

        ends, goes_on = in_background(fail(), failures.append), in_background(asyncio.sleep(60), failures.append)
        while not failures:
            await asyncio.sleep(0)
        assert not goes_on.done()
        await stop(ends, goes_on)
        assert goes_on.cancelled()
        return failures

    (failure,) = asyncio.run(main())
    assert str(failure) == "broken"


def test_a_server_of_rollouts_reports_that_it_cannot_retire_versions(monkeypatch: pytest.MonkeyPatch):
    """Otherwise the memory of each policy would stay in use."""

    async def main() -> BaseException:
        failures: asyncio.Queue[BaseException] = asyncio.Queue()
        rollouts = Rollouts(EngineSettings(), weights_bytes=1)

        async def broken() -> bool:
            raise RuntimeError("no version is removed")

        monkeypatch.setattr(rollouts.versions, "_remove_stopped", broken)
        async with rollouts.running(0.01, failures.put_nowait):
            return await asyncio.wait_for(failures.get(), 240)

    assert str(asyncio.run(main())) == "no version is removed"
