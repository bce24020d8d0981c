from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.serving import EngineSettings
from grpo.errors import PolicyError
from grpo.policy.scripted import ScriptedPolicy
from grpo.serving.engine.engine import ProcessPolicy
from grpo.serving.engine.served_model import ServedModel
from grpo.serving.engine.versions import ServedVersion, Versions
from grpo.serving.garbage import frozen_survivors


def _served(number: int) -> ServedModel:
    agent = MultiTurnAgent(policy=ScriptedPolicy([["Hello."]]))
    return ServedModel(model="clerk", version=f"clerk/{number}", policy=agent.policy, agent=agent)  # type: ignore[arg-type]


def test_a_version_that_dies_again_and_again_is_loaded_later_each_time(monkeypatch: pytest.MonkeyPatch):
    """Version 2, by the time of its next look: at once after the first death, then after twice the time before.

    Looks are 5 s apart: loaded at 5, dead at 10 and loaded again; dead at 15, waited for 5; dead at 25, for 15; dead at
    45, for 35. Version 1 answers meanwhile.
    """
    now, loads, answering = [0.0], list[float](), set[str]()
    pause = asyncio.sleep

    async def sleep(seconds: float) -> None:
        now[0] += seconds
        answering.add(watched.current.served.version if watched.current else "")
        dead.update(version for version in watched.loaded if version.served.version == "clerk/2")
        await pause(0)

    def next_version(current: str) -> ServedModel | None:
        if not current:
            return _served(1)
        loads.append(now[0])
        return _served(2)

    dead: set[ServedVersion] = set()
    monkeypatch.setattr(Versions, "_pause", lambda _, seconds: sleep(seconds))
    monkeypatch.setattr(ServedVersion, "stopped", property(lambda version: "killed" if version in dead else None))
    watched = Versions(EngineSettings(), clock=lambda: now[0])

    async def run() -> None:
        watcher = asyncio.create_task(watched.watch(next_version, every_s=5.0))
        while now[0] < 165:
            await pause(0.001)
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        await watched.close()

    asyncio.run(run())
    assert loads[:5] == [5, 10, 20, 40, 80]
    assert watched.failed_loads >= 4
    assert answering == {"clerk/1", "clerk/2"}


def test_a_failed_version_does_not_hold_up_the_one_that_replaces_it(monkeypatch: pytest.MonkeyPatch):
    """Version 2 cannot be loaded, so that it is tried later each time. After a rollback, 3 is loaded at once."""
    now, tries = [0.0], list[float]()
    pause = asyncio.sleep

    class Source:
        """Look-up of a registry."""

        moved: str | None = None

        def __call__(self, current: str) -> ServedModel | None:
            if not current:
                return _served(1)
            tries.append(now[0])
            if now[0] < 100:
                raise PolicyError("the checkpoint is damaged")
            return _served(3) if current != "clerk/3" else None

        def is_changed(self) -> bool:
            return 100 <= now[0] < 105

    async def sleep(seconds: float) -> None:
        now[0] += seconds
        await pause(0)

    monkeypatch.setattr(Versions, "_pause", lambda _, seconds: sleep(seconds))
    watched = Versions(EngineSettings(), clock=lambda: now[0])

    async def run() -> str | None:
        watcher = asyncio.create_task(watched.watch(Source(), every_s=5.0))
        while now[0] < 130:
            await pause(0.001)
        answering = watched.current.served.version if watched.current else None
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        await watched.close()
        return answering

    assert asyncio.run(run()) == "clerk/3"
    assert tries[:5] == [5, 15, 35, 75, 100]


class _Loaded(ProcessPolicy):
    """A policy of which only the memory counts."""

    def __init__(self) -> None:
        self.tokenizer: Any = None
        self.is_loaded = True

    def close(self, *, wait_s: float = 0.0) -> None:
        """Free the memory."""
        self.is_loaded = False


def test_a_version_that_does_not_start_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch):
    """Its renderer fails. Otherwise a second copy of the model is loaded in the next try while the first one stays."""

    def fail(*_: object, **__: object) -> None:
        raise PolicyError("the template is not for chats")

    monkeypatch.setattr("grpo.serving.engine.versions.make_renderer", fail)
    policy = _Loaded()
    with pytest.raises(PolicyError, match="not for chats"):
        asyncio.run(Versions(EngineSettings()).add(replace(_served(1), policy=policy)))
    assert not policy.is_loaded


def test_a_stopped_version_with_turns_in_progress_is_kept_until_they_have_ended(monkeypatch: pytest.MonkeyPatch):
    """They have its tokens; another process of the same version answers meanwhile."""
    monkeypatch.setattr(ServedVersion, "stopped", property(lambda version: "killed" if version in dead else None))
    dead: set[ServedVersion] = set()
    retired: list[ServedVersion] = []

    async def run() -> None:
        watched = Versions(EngineSettings())
        watched.on_retired = retired.append
        await watched.add(_served(1))
        (first,) = watched.loaded
        first.running = 1
        dead.add(first)
        assert watched.current is None
        assert not await watched._remove_stopped()
        await watched.add(_served(1))
        assert watched.current is not first
        assert watched.loaded[0] is first
        first.running = 0
        assert await watched._remove_stopped()
        assert retired == [first]
        assert len(watched.loaded) == 1
        await watched.close()

    asyncio.run(run())


def test_cycles_of_a_version_that_was_removed_are_freed(monkeypatch: pytest.MonkeyPatch):
    """An agent of the user's own may refer to itself; full collections leave out what they have kept before."""
    monkeypatch.setattr(ServedVersion, "stopped", property(lambda version: "killed"))

    async def run() -> None:
        watched, served = Versions(EngineSettings()), _served(1)
        vars(served.agent)["itself"] = served.agent
        kept = weakref.ref(served.agent)
        await watched.add(served)
        del served
        gc.collect()
        assert await watched._remove_stopped()
        gc.collect()
        assert kept() is None
        await watched.close()

    with frozen_survivors():
        asyncio.run(run())
