"""Versions that a server answers with: the newest, and earlier ones that still have conversations.

    alias champion     3 ─────────────────► 4
    new conversations  3 ───────────────────┤ 4          version 4 is loaded while 3 runs, then it answers
    conversations of 3 3 ──────────────────────► idle    3 leaves when they have been idle for a while

A conversation stays with its version. If a third version is loaded, the server retires the oldest one as soon as its
running turns have ended, without waiting until it is idle.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Self
from weakref import WeakKeyDictionary

from grpo.config.serving import EngineSettings
from grpo.errors import GRPOError, PolicyError
from grpo.messages import Message, Tool
from grpo.policy.policy import Sampler, Session
from grpo.policy.renderer import make_renderer
from grpo.renderers.chat_template import Renderer
from grpo.serving.engine.engine import Engine, ProcessPolicy
from grpo.serving.engine.messages import EngineStats
from grpo.serving.engine.served_model import FirstVersionError, LoadsVersions, ServedModel, WatchesAlias, load, release
from grpo.serving.event_hub import EventHub
from grpo.storage.error_lines import one_line
from grpo.user_failures import is_exception, user_code

logger = logging.getLogger(__name__)
_RENDERERS = 64
"""Renderers that a version keeps, one for each set of tools."""
_KEPT_VERSIONS = 2
_LONGEST_PAUSE_S = 300.0
_WOKEN_S, _WANT_AGAIN_S = 0.2, 30.0
"""Shortest time between two looks, and between two loads of a version that other servers have."""


class ServedVersion:
    """A loaded version with its engine."""

    def __init__(self, served: ServedModel, settings: EngineSettings) -> None:
        self.served = served
        self.retired = False
        self.running = 0
        """Turns in progress."""
        self.last_used = time.monotonic()
        self._settings = settings
        self._exits = AsyncExitStack()
        self._samplers: dict[str, Sampler] = {}
        self._renderers: OrderedDict[str, Renderer] = OrderedDict()
        self._tool_tokens: WeakKeyDictionary[Renderer, int] = WeakKeyDictionary()

    async def start(self) -> Self:
        """Start the engine. The chat template is tried on a thread, because this takes a second and more."""
        await self._sampler(await asyncio.to_thread(self.renderer, ()))
        return self

    async def close(self) -> None:
        """Stop the engine, and let go of the model."""
        self.retired = True
        self._renderers.clear()
        self._samplers.clear()
        with user_code("the end of the version's policy", passes=is_exception):
            await self._exits.aclose()
        release(self.served)

    @property
    def stopped(self) -> str | None:
        """Reason if the engine has ended by itself. None while it runs, and for a model on another server."""
        engines = [engine for engine in self._samplers.values() if isinstance(engine, Engine)]
        return engines[0].stopped if engines else None

    @property
    def silent_s(self) -> float | None:
        """Seconds since the last heartbeat of the engine process. None for a model on another server."""
        engines = [engine for engine in self._samplers.values() if isinstance(engine, Engine)]
        return engines[0].silent_s if engines else None

    @property
    def answers(self) -> bool:
        """False while the engine process is silent. A model on another server has no heartbeat, so it is True."""
        return (self.silent_s or 0.0) <= self._settings.longest_silence_s

    def end_hung(self) -> None:
        """Stop the engine if its process hangs."""
        for engine in self._samplers.values():
            if isinstance(engine, Engine):
                engine.end_hung(self._settings.longest_pass_s)

    async def open(self, renderer: Renderer) -> Session:
        """Open a session for one turn."""
        return (await self._sampler(renderer)).open()

    @property
    def max_context(self) -> int:
        """Most tokens that a conversation may have."""
        limit = self.served.policy.max_context
        return min(limit, self.served.max_context or limit)

    def scale(self, concurrency: int) -> None:
        """Change the number of turns that the engine generates at once. A model on another server is not changed."""
        for engine in self._samplers.values():
            if isinstance(engine, Engine):
                engine.scale(concurrency)

    def stats(self) -> EngineStats | None:
        """Counters of the engine. None for a model on another server."""
        engine = next(iter(self._samplers.values()), None)
        return engine.stats() if isinstance(engine, Engine) else None

    async def _sampler(self, renderer: Renderer) -> Sampler:
        """Sampler for a renderer, which is started when it is needed first.

        All sets of tools share one engine, because it reads tokens. A model on another server has one sampler for each
        set of tools.
        """
        if self.retired:
            raise PolicyError(f"{self.served.version} is not served any more")
        policy = self.served.policy
        key = "" if isinstance(policy, ProcessPolicy) else repr(renderer.tools)
        if key not in self._samplers:
            with user_code("the version's policy", passes=is_exception):
                sampler = (
                    Engine(
                        policy,
                        renderer,
                        concurrency=self._settings.concurrency,
                        prefill_chunk=self._settings.prefill_chunk,
                        prefix_cache_bytes=self._settings.prefix_cache_bytes,
                        threads=self._settings.threads,
                    )
                    if isinstance(policy, ProcessPolicy)
                    else policy.sampler(concurrency=self._settings.concurrency, renderer=renderer)
                )
                self._samplers[key] = await self._exits.enter_async_context(sampler)
        return self._samplers[key]

    def renderer(self, tools: tuple[Tool, ...]) -> Renderer:
        """Renderer with the tools of the client and of the agent. The version keeps the last ones that were used."""
        key = json.dumps([tool.to_template() for tool in tools], sort_keys=True)
        renderer = self._renderers.pop(key, None)
        if renderer is None:
            with user_code("the version's renderer", passes=is_exception):
                renderer = make_renderer(
                    getattr(self.served.policy, "tokenizer", None),
                    tools=(*tools, *self.served.agent.tools),
                    settings=self.served.renderer,
                )
        self._renderers[key] = renderer
        if len(self._renderers) > _RENDERERS:
            self._renderers.popitem(last=False)
        return renderer

    def tool_tokens(self, renderer: Renderer) -> int:
        """Tokens that the client's tools of a renderer add to a prompt. They are counted once and remembered."""
        tokens = self._tool_tokens.get(renderer)
        if tokens is None:
            prompt = (Message(role="user", content="x"),)
            tokens = len(renderer.build_prompt(prompt)) - len(self.renderer(()).build_prompt(prompt))
            self._tool_tokens[renderer] = tokens = max(0, tokens)
        return tokens


class Versions:
    """Versions of one model. The newest answers new conversations."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        idle_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.concurrency = settings.concurrency
        """Turns that each version generates at once."""
        self.hub = EventHub()
        self._idle_s = idle_s
        self._clock = clock
        self._versions: list[ServedVersion] = []
        self.on_retired: Callable[[ServedVersion], None] = lambda version: None
        self.idle_elsewhere_s: Callable[[ServedVersion], float] = lambda version: float("inf")
        """Time since another server has used a version. Infinite if no other server has it."""
        self._wanted: str | None = None
        """Version that `want` has asked for, because conversations of other servers use it."""
        self._want_after = clock()
        self._woken = asyncio.Event()
        self.swaps = 0
        self.failed_loads = 0
        """Failed attempts to look for or to load a version, and losses of engines that ended by themselves."""
        self.moved: str | None = None
        """Sentence about an alias that was moved by hand to another version. None if it was not moved."""

    @property
    def current(self) -> ServedVersion | None:
        """Version for new conversations: the newest with a running engine. None if there is none, as at the start."""
        return next((version for version in reversed(self._versions) if version.stopped is None), None)

    @property
    def loaded(self) -> Sequence[ServedVersion]:
        """All loaded versions, oldest first."""
        return tuple(self._versions)

    async def add(self, served: ServedModel) -> None:
        """Start a version while the others go on. From now on new conversations go to it."""
        same = (version for version in self._versions if version.served.version == served.version)
        known = next((version for version in same if version.stopped is None), None)
        if known is not None:  # the alias is back at a version that is still loaded for its conversations
            self._versions.remove(known)
            if served is not known.served:
                await asyncio.to_thread(release, served)
        version = known or await self._started(served)
        version.scale(self.concurrency)
        self.swaps += bool(self._versions)
        self._versions.append(version)
        logger.info("%s answers new conversations", served.version)
        self.hub.publish("version.loaded", model=served.version)
        await self.retire_idle()

    async def _started(self, served: ServedModel) -> ServedVersion:
        """A version with its engine. If it does not start, its model is released, as the next try loads it again."""
        try:
            return await ServedVersion(served, self.settings).start()
        except BaseException:
            await asyncio.to_thread(release, served)
            raise

    def want(self, version: str) -> None:
        """Look for the newest version at once, and also load this one, because other servers have loaded it.

        If two versions are loaded already, this one is not, because the other servers are about to retire it as well.
        """
        self._wanted = version
        self._woken.set()

    async def _load_wanted(self, next_version: Callable[[str], ServedModel | None]) -> None:
        """Load the wanted version as an older one, so that new conversations stay with the version that they have."""
        name, self._wanted = self._wanted, None
        known = name is None or any(version.served.version == name for version in self._versions)
        if known or len(self._versions) >= _KEPT_VERSIONS or self._clock() < self._want_after:
            return
        if name is not None and isinstance(next_version, LoadsVersions):
            self._want_after = self._clock() + _WANT_AGAIN_S
            served = await load(lambda current: next_version.load_version(current), name)
            if served is not None:
                version = await self._started(served)
                version.scale(self.concurrency)
                self._versions.insert(0, version)
                logger.info("%s is loaded for conversations of other servers", name)
                self.hub.publish("version.loaded", model=name)

    def scale(self, concurrency: int) -> None:
        """Change the number of turns that are generated at once, up to the number in the settings."""
        for version in self._versions:
            version.scale(concurrency)
        self.concurrency = concurrency

    async def retire_idle(self) -> None:
        """Stop versions without running turns if they are idle, or if too many versions are loaded."""
        for index, version in enumerate(self._versions[:-1]):
            too_many = index < len(self._versions) - _KEPT_VERSIONS
            idle = min(self._clock() - version.last_used, self.idle_elsewhere_s(version)) > self._idle_s
            if version.running == 0 and (too_many or idle):
                await self._remove(version)
                logger.info("%s is retired", version.served.version)
                self.hub.publish("version.retired", model=version.served.version)
                await self.retire_idle()
                return

    async def _remove(self, version: ServedVersion) -> None:
        self._versions.remove(version)
        self.on_retired(version)
        await version.close()
        gc.unfreeze()  # so that the next full collection frees the version's code, see `grpo.serving.garbage`

    async def _remove_stopped(self) -> bool:
        """Let go of versions if their engines hang or have ended, e.g. killed for lack of memory. True if any did."""
        for version in self._versions:
            version.end_hung()
        stopped = [version for version in self._versions if version.stopped is not None and version.running == 0]
        for version in stopped:
            logger.error("%s does not answer any more: %s", version.served.version, version.stopped)
            await self._remove(version)
            self.hub.publish("version.lost", model=version.served.version)
        return bool(stopped)

    async def watch(self, next_version: Callable[[str], ServedModel | None], *, every_s: float) -> None:
        """Load each new version that `next_version` finds, given the one that answers, until cancelled.

        `next_version` is called on a thread. If it fails, the error is logged, the version that answers goes on, and
        the next try comes later each time, but at once if the address names another version, e.g. after a rollback. A
        version is retried in the same way if its engine ends soon after the load.

        Raises the `GRPOError` of a first version that cannot be loaded, and `FirstVersionError` for other exceptions.
        """
        pause_s, try_at, first = every_s, self._clock(), True
        while True:
            if await self._remove_stopped():
                self.failed_loads += 1
                try_at = self._clock() + pause_s - every_s  # at once, unless the version before failed or was lost too
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
            if (
                self._clock() < try_at
                and isinstance(next_version, WatchesAlias)
                and await asyncio.to_thread(next_version.is_changed)
            ):
                try_at, pause_s = self._clock(), every_s
            if self._clock() >= try_at:
                current = self.current
                try:
                    served = await load(next_version, current.served.version if current else "")
                    if first:  # now, because a collection of all imported modules would hold up turns later
                        gc.collect()
                    if served is not None:
                        with user_code("the version's code", passes=is_exception):
                            await self.add(served)
                    else:
                        pause_s = every_s
                        await self._load_wanted(next_version)
                    await self.retire_idle()
                    first = False
                except Exception as error:
                    self.failed_loads += 1
                    if first:  # the server has nothing to answer with, so it ends and may be started again
                        if isinstance(error, GRPOError):
                            raise
                        raise FirstVersionError(f"no version can be served: {one_line(error)}") from error
                    logger.error(
                        "no version was loaded: %s", error if isinstance(error, GRPOError) else one_line(error)
                    )
                    pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
                    try_at = self._clock() + pause_s
                if isinstance(next_version, WatchesAlias):
                    self.moved = next_version.moved
            await self._pause(every_s)

    async def _pause(self, every_s: float) -> None:
        """Wait until the next look is due, or until `want` asks for a version."""
        with suppress(TimeoutError):
            async with asyncio.timeout(every_s):
                await self._woken.wait()
                await asyncio.sleep(_WOKEN_S)
        self._woken.clear()

    async def close(self) -> None:
        """Stop all versions."""
        for version in tuple(self._versions):
            await version.close()
        self._versions.clear()
