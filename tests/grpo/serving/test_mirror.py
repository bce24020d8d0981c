"""The position of a mirror."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from grpo.config.serving import MirrorSettings
from grpo.errors import DataError
from grpo.log.writer import ServingLog
from grpo.serving.mirror import mirror as mirror_module
from grpo.serving.mirror.mirror import FOLDER, Mirror

SETTINGS = MirrorSettings(experiment="served", every_s=0.01)


def test_a_position_that_cannot_be_read_is_an_error_at_the_start(tmp_path: Path):
    """With the file and the remedy; the file of another experiment is not read."""

    async def start(folder: Path, settings: MirrorSettings) -> None:
        async with ServingLog(folder) as log, Mirror(log, settings, tracking_uri="http://127.0.0.1:9") as mirror:
            while not mirror.counts.failures:
                await asyncio.sleep(0.01)

    asyncio.run(start(tmp_path, SETTINGS))
    (lock,) = (tmp_path / FOLDER).glob("*.lock")
    lock.with_suffix(".json").write_text('{"segments": ')
    with pytest.raises(DataError, match=r"position of the mirror in .*json cannot be read: .*Delete the file"):
        asyncio.run(start(tmp_path, SETTINGS))
    other = MirrorSettings(experiment="another", every_s=0.01)
    asyncio.run(start(tmp_path, other))


def test_a_mirror_that_cannot_begin_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """For example while another process has damaged the position, after the start has read it."""
    read, calls = mirror_module._read_state, iter(range(3))

    def damaged(file: Path) -> mirror_module._State:
        if next(calls, 0) in (1, 2):  # call 0 is the start's
            raise DataError("the position of the mirror cannot be read")
        return read(file)

    monkeypatch.setattr(mirror_module, "_read_state", damaged)

    async def main() -> None:
        async with ServingLog(tmp_path) as log, Mirror(log, SETTINGS, tracking_uri="http://127.0.0.1:9") as mirror:
            while mirror.counts.failures < 3:  # two of the beginning, then one of the server that does not answer
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 240))


def test_one_process_mirrors_at_a_time(tmp_path: Path):
    """The second mirror of a folder tries nothing until the first one ends."""

    async def main() -> None:
        async with ServingLog(tmp_path) as log:
            second = Mirror(log, SETTINGS, tracking_uri="http://127.0.0.1:9")
            async with Mirror(log, SETTINGS, tracking_uri="http://127.0.0.1:9") as first:
                while not first.counts.failures:
                    await asyncio.sleep(0.01)
                async with second:
                    await asyncio.sleep(0.2)
                    assert second.counts.failures == 0

    asyncio.run(main())
