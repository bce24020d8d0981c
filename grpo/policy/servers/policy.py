"""Policy on several inference servers: conversations are spread over them, and each stays on its server.

A conversation moves only if its server fails, so that the server keeps its keys and values between turns. If a server
does not answer a turn, another server is asked for it from its first token. Random numbers of a turn depend only on the
seed of the episode and the number of the turn, so that any server with the same weights gives the same tokens. What is
lost is the time of one turn, and nothing has to be streamed.

    slow            another server is asked as well after `hedge_s`, and the first reply counts
                    (a hedged request: Dean & Barroso, The Tail at Scale, CACM 2013)
    full            another server is asked, and this one again after the time that it names
    gone            another server is asked, and this one again after a pause
    at a newer one  another server is asked, or the turn begins again when the rollout has the newer version as well
    lying           another server is asked, and this one not any more, see `RolloutServer`
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from grpo.config.rollout import StartedServers
from grpo.errors import ConfigError, PolicyError
from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.policy.servers.protocol import TurnReply, TurnRequest
from grpo.policy.servers.server import Check, RolloutServer, ServerFault, Weights, WrongWeights
from grpo.renderers.chat_template import Renderer
from grpo.trajectories import PolicySpan

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEY = "GRPO_ROLLOUT_KEY"
"""Environment variable of the key for all servers."""
STARTED = "GRPO_ROLLOUT_SERVERS"
"""Environment variable with the addresses of the servers that the run has started, separated by blanks. Processes that
the run starts inherit it, and it is neither in the config nor in an identity."""


class ServersPolicy:
    """Policy version that servers generate for. It uploads the weights to each server that lacks them.

    `check` recomputes the log-probabilities of a turn with the weights. Raises `PolicyError` if no key is set.
    """

    def __init__(
        self,
        urls: Sequence[str],
        weights: Weights,
        tokenizer: PreTrainedTokenizerBase,
        check: Check,
        *,
        max_context: int,
        hedge_s: float,
        pause_s: float = 0.5,
        tries: int = 5,
    ) -> None:
        """`pause_s` is the first pause after a failure. After `tries` failures in a row a server counts as gone."""
        self._key = server_key()
        self.hash = weights.request.version
        self.max_context = max_context
        self.tokenizer = tokenizer
        self._urls, self._weights, self._check = urls, weights, check
        self._hedge_s, self._pause_s, self._tries = hedge_s, pause_s, tries

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[ServersSampler]:
        """See `Policy.sampler`. Waits until a server has the weights, and up to `hedge_s` for the others."""
        sampler = ServersSampler(tuple(sorted(renderer.stop_ids)))
        try:
            await sampler.prepare_policy(self)
            sampler.replace_policy(self)
            del self  # a rollout that goes on with later versions does not keep the model of the first one
            yield sampler
        finally:
            await sampler.close()

    def open_pool(self) -> _Pool:
        """The servers for this version. Call it on the event loop of the rollout, and close the pool."""
        servers = [
            RolloutServer(url, self._weights, self._key, self._check, pause_s=self._pause_s) for url in self._urls
        ]
        return _Pool(servers, version=self.hash, hedge_s=self._hedge_s, pause_s=self._pause_s, tries=self._tries)


class ServersSampler:
    """Conversations on the servers. Each turn has the version of the policy that was the newest when it began."""

    def __init__(self, stop_ids: tuple[int, ...]) -> None:
        self.stop_ids = stop_ids
        self._pools: dict[str, _Pool] = {}
        """Servers of the versions that are prepared, in use, or still generate turns."""
        self._version = ""
        self._prepared: list[str] = []
        """Versions that are prepared, or are being prepared, and are not in use yet."""

    @property
    def pool(self) -> _Pool:
        """Servers of the newest version."""
        return self._pools[self._version]

    def open(self) -> ServersSession:
        """Start a conversation."""
        return ServersSession(self)

    async def prepare_policy(self, policy: ServersPolicy) -> None:
        """Let the servers load the next version. Turns of the present one go on.

        Waits until a server has the weights, and up to `hedge_s` for the others. Raises as `Session.generate`.
        """
        self._prepared.append(policy.hash)
        await self.close_unused()
        is_new = policy.hash not in self._pools
        if is_new:
            self._pools[policy.hash] = policy.open_pool()
        for version, pool in self._pools.items():
            pool.allow_loading(version == policy.hash)
        if is_new:
            await self._pools[policy.hash].load()

    def replace_policy(self, policy: ServersPolicy) -> None:
        """Generate turns that begin from now on with a prepared version."""
        del self._prepared[: self._prepared.index(policy.hash) + 1]
        self._version = policy.hash
        for version, pool in self._pools.items():
            pool.is_replaced = version != policy.hash

    async def close_unused(self) -> None:
        """Close the connections of earlier versions that generate no turn any more, so that their models are freed."""
        needed = {self._version, *self._prepared}
        unused = [version for version, pool in self._pools.items() if version not in needed and not pool.is_asked]
        for pool in [self._pools.pop(version) for version in unused]:
            await pool.close()

    async def close(self) -> None:
        """Close the connections to the servers."""
        for pool in tuple(self._pools.values()):
            await pool.close()


class ServersSession:
    """One conversation with all its tokens so far, on one of the servers."""

    def __init__(self, sampler: ServersSampler) -> None:
        self.server: RolloutServer | None = None
        """Server that has generated the last turn."""
        self.policy_spans: list[PolicySpan] = []
        """Policies that turns were asked of, each with the position of its first token in the conversation."""
        self._sampler = sampler
        self._ids: list[int] = []
        self._turns = 0

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Session.generate`. Raises `ConnectionError` or `PolicyError` if no server is left."""
        sampling.refuse_unread("a rollout server")
        if not sampling.unfiltered:
            raise ConfigError(
                "rollout servers support neither top_p and top_k nor temperature 0. Leave top_p and top_k out, and "
                "raise the temperature"
            )
        self._ids += prompt.new_ids
        reply = None
        while reply is None:  # until the version is not replaced before the turn has begun
            reply = await self._ask(self._sampler.pool, sampling)
        self._turns += 1
        self._ids += reply.token_ids
        return Generation(
            token_ids=list(reply.token_ids),
            logprobs=list(reply.logprobs),
            stop=reply.stop,
            cached_tokens=reply.cached_tokens,
        )

    async def _ask(self, pool: _Pool, sampling: Sampling) -> TurnReply | None:
        """Reply to the turn after the tokens so far, see `_Pool.ask`."""
        spans = [span for span in self.policy_spans if span.start < len(self._ids)]
        if not spans or spans[-1].policy_hash != pool.version:
            spans.append(PolicySpan(policy_hash=pool.version, start=len(self._ids)))
        self.policy_spans = spans
        request = TurnRequest(
            version=pool.version,
            token_ids=tuple(self._ids),
            stop_token_ids=self._sampler.stop_ids,
            temperature=sampling.temperature,
            max_new_tokens=sampling.max_new_tokens,
            seed=sampling.seed,
            turn=self._turns,
        )
        try:
            return await pool.ask(self, request)
        finally:
            await self._sampler.close_unused()

    def move(self, server: RolloutServer | None) -> None:
        """Let the conversation go on at this server."""
        if self.server is not None:
            self.server.conversations -= 1
        self.server = server
        if server is not None:
            server.conversations += 1

    def fork(self, tokens: int) -> ServersSession:
        """See `ForkableSession.fork`. The new conversation begins at the same server, which has the keys and values."""
        session = ServersSession(self._sampler)
        session._ids, session._turns = self._ids[:tokens], self._turns
        session.policy_spans = [span for span in self.policy_spans if span.start < tokens]
        session.move(self.server)
        return session

    def close(self) -> None:
        """See `Session.close`."""
        self.move(None)


class _Pool:
    """The servers of a rollout, for one version of the policy."""

    def __init__(
        self, servers: Sequence[RolloutServer], *, version: str, hedge_s: float, pause_s: float, tries: int
    ) -> None:
        self.version = version
        self.is_replaced = False
        """True if turns that begin from now on have a newer version."""
        self._servers = servers
        self._hedge_s, self._pause_s, self._tries = hedge_s, pause_s, tries
        self._loading: list[asyncio.Task[None]] = []
        self._turns = 0

    @property
    def is_asked(self) -> bool:
        """True if a turn is in progress."""
        return self._turns > 0

    async def load(self) -> None:
        """Let all servers load the weights. Wait until one has them, and `hedge_s` longer for the others.

        Servers that cannot be reached are tried again with each turn. Raises as `ask` if no server is left.
        """
        self._loading = [asyncio.create_task(server.load()) for server in self._servers]
        waiting = set(self._loading)
        while waiting and not any(_has_ended_well(task) for task in self._loading):
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if waiting:
            await asyncio.wait(waiting, timeout=self._hedge_s)
        self._check_any_is_left()

    async def close(self) -> None:
        """End uploads that are in progress, and close the connections."""
        for task in self._loading:
            task.cancel()
        await asyncio.gather(*self._loading, return_exceptions=True)
        for server in tuple(self._servers):
            await server.close()

    def allow_loading(self, is_allowed: bool) -> None:
        """Let servers that lose the weights load them again, or not, because they have to load a newer version."""
        for server in self._servers:
            server.may_load = is_allowed

    async def ask(self, session: ServersSession, request: TurnRequest) -> TurnReply | None:
        """Reply of the session's server, or of another one that the session then moves to.

        None if no server has begun the turn, and this version was replaced.

        Raises `ConnectionError` if every server is gone, because a later try may succeed, and `PolicyError` if every
        server is refused.
        """
        asked: dict[asyncio.Task[TurnReply], RolloutServer] = {}
        self._turns += 1
        try:
            while asked or not self.is_replaced:
                server = self._next(session, asked.values())
                if server is not None:
                    if server is not session.server:
                        session.move(server)
                    asked[asyncio.create_task(server.turn(request))] = server
                elif not asked:
                    self._check_any_is_left()
                    await asyncio.sleep(self._until_free_s())
                    continue
                done, _ = await asyncio.wait(asked, timeout=self._hedge_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    for late in asked.values():
                        late.is_late(self._hedge_s)
                for task in done:
                    replied = asked.pop(task)
                    try:
                        reply = task.result()
                    except ServerFault:
                        continue
                    session.move(replied)
                    return reply
            return None
        finally:
            self._turns -= 1
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    def _next(self, session: ServersSession, asked: Collection[RolloutServer]) -> RolloutServer | None:
        """The session's server if it can be asked, or else the one with the fewest conversations. None if none can.

        A server that is slow is asked only if no other server is free, and never in addition to another one. Otherwise
        servers that are all slow would get each turn twice, and be slower still.
        """
        free = [server for server in self._servers if server.is_free and server not in asked]
        fast = [server for server in free if not server.is_slow]
        candidates = fast if fast or asked else free
        for server in candidates:
            if session.server is not None and server.url == session.server.url:  # maybe of the version before
                return server
        return min(candidates, key=lambda server: server.conversations, default=None)

    def _until_free_s(self) -> float:
        """Time after which a server may be free."""
        waits = [server.wait_s for server in self._servers if not server.is_refused]
        return max(self._pause_s / 10, min(waits, default=0.0))

    def _check_any_is_left(self) -> None:
        """Raise an error with what is wrong with each server, if none can be expected to answer."""
        for server in self._servers:
            if server.wrong_later is not None:  # also for turns that see this before the turn that was wrong has ended
                raise WrongWeights(server.wrong_later)
        faults = "; ".join(server.place for server in self._servers)
        if all(server.is_refused for server in self._servers):
            raise PolicyError(f"no rollout server can be used: {faults}. Correct rollout.servers or the servers")
        if all(server.is_refused or server.is_gone(self._tries) for server in self._servers):
            raise ConnectionError(f"no rollout server answers: {faults}. Start them, or correct rollout.servers")


def _has_ended_well(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def server_urls(servers: tuple[str, ...] | StartedServers) -> tuple[str, ...]:
    """Addresses of the servers. Raises `PolicyError` if the run has to start them and has not done so."""
    if not isinstance(servers, StartedServers):
        return servers
    urls = os.environ.get(STARTED, "").split()
    if len(urls) != servers.count:
        raise PolicyError(
            f"rollout.servers.count {servers.count}: the servers were not started for this process ({len(urls)} are "
            "known). Only grpo train, retrain, tune, evaluate and reproduce start them. In other programs start "
            "servers yourself, and list their addresses in rollout.servers"
        )
    return tuple(urls)


def server_key() -> str:
    """Key of the servers. Raises `PolicyError` if it is not set, or cannot be a header."""
    key = os.environ.get(KEY, "").strip()
    if not key or not (key.isascii() and key.isprintable()):
        raise PolicyError(
            f"rollout.servers: set {KEY} to a key of the servers, made by grpo keys create trainer --scope rollout"
        )
    return key
