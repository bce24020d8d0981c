"""Policy on several inference servers: conversations are spread over them, and each stays on its server.

A conversation moves only if its server fails, so that the server keeps its keys and values between turns. If a server
does not answer a turn, another server is asked for it from its first token. Random numbers of a turn depend only on the
seed of the episode and the number of the turn, so that any server with the same weights gives the same tokens. What is
lost is the time of one turn, and nothing has to be streamed.

    slow            another server is asked as well after `hedge_s`, and the first reply counts
                    (a hedged request: Dean & Barroso, The Tail at Scale, CACM 2013)
    full            another server is asked, and this one again after the time that it names
    gone            another server is asked, and this one again after a pause
    lying           another server is asked, and this one not any more, see `RolloutServer`
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial

from transformers import PreTrainedTokenizerBase

from grpo.errors import ConfigError, PolicyError
from grpo.policy.policy import Generation, Prompt, Sampler, Sampling, SessionFactory
from grpo.policy.servers.protocol import TurnReply, TurnRequest
from grpo.policy.servers.server import Check, RolloutServer, ServerFault, Weights, WrongWeights
from grpo.renderers.chat_template import Renderer

KEY = "GRPO_ROLLOUT_KEY"
"""Environment variable of the key for all servers."""


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
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[Sampler]:
        """See `Policy.sampler`. Waits until a server has the weights, and up to `hedge_s` for the others."""
        servers = [
            RolloutServer(url, self._weights, self._key, self._check, pause_s=self._pause_s) for url in self._urls
        ]
        pool = _Pool(servers, hedge_s=self._hedge_s, pause_s=self._pause_s, tries=self._tries)
        loading = [asyncio.create_task(server.load()) for server in servers]
        try:
            await pool.wait_for_weights(loading)
            yield SessionFactory(partial(ServersSession, pool, self.hash, tuple(sorted(renderer.stop_ids))))
        finally:
            for task in loading:
                task.cancel()
            await asyncio.gather(*loading, return_exceptions=True)
            for server in servers:
                await server.close()


class ServersSession:
    """One conversation with all its tokens so far, on one of the servers."""

    def __init__(self, pool: _Pool, version: str, stop_ids: tuple[int, ...]) -> None:
        self.server: RolloutServer | None = None
        """Server that has generated the last turn."""
        self._pool, self._version, self._stop_ids = pool, version, stop_ids
        self._ids: list[int] = []
        self._turns = 0

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Session.generate`. Raises `ConnectionError` or `PolicyError` if no server is left."""
        sampling.refuse_unread("a rollout server")
        if not sampling.unfiltered:
            raise ConfigError("rollout servers sample without top-p, top-k and greedy decoding. Raise the temperature")
        self._ids += prompt.new_ids
        request = TurnRequest(
            version=self._version,
            token_ids=tuple(self._ids),
            stop_token_ids=self._stop_ids,
            temperature=sampling.temperature,
            max_new_tokens=sampling.max_new_tokens,
            seed=sampling.seed,
            turn=self._turns,
        )
        reply = await self._pool.ask(self, request)
        self._turns += 1
        self._ids += reply.token_ids
        return Generation(
            token_ids=list(reply.token_ids),
            logprobs=list(reply.logprobs),
            stop=reply.stop,
            cached_tokens=reply.cached_tokens,
        )

    def move(self, server: RolloutServer | None) -> None:
        """Let the conversation go on at this server."""
        if self.server is not None:
            self.server.conversations -= 1
        self.server = server
        if server is not None:
            server.conversations += 1

    def close(self) -> None:
        """See `Session.close`."""
        self.move(None)


class _Pool:
    """The servers of a rollout."""

    def __init__(self, servers: Sequence[RolloutServer], *, hedge_s: float, pause_s: float, tries: int) -> None:
        self._servers = servers
        self._hedge_s, self._pause_s, self._tries = hedge_s, pause_s, tries

    async def wait_for_weights(self, loading: Collection[asyncio.Task[None]]) -> None:
        """Wait until a server has the weights, and `hedge_s` longer for the others.

        Servers that cannot be reached are tried again with each turn. Raises as `ask` if no server is left.
        """
        waiting = set(loading)
        while waiting and not any(_has_ended_well(task) for task in loading):
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if waiting:
            await asyncio.wait(waiting, timeout=self._hedge_s)
        self._check_any_is_left()

    async def ask(self, session: ServersSession, request: TurnRequest) -> TurnReply:
        """Reply of the session's server, or of another one that the session then moves to.

        Raises `ConnectionError` if every server is gone, because a later try may succeed, and `PolicyError` if every
        server is refused.
        """
        asked: dict[asyncio.Task[TurnReply], RolloutServer] = {}
        try:
            while True:
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
        finally:
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
        if session.server in candidates:
            return session.server
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


def server_key() -> str:
    """Key of the servers. Raises `PolicyError` if it is not set, or cannot be a header."""
    key = os.environ.get(KEY, "").strip()
    if not key or not (key.isascii() and key.isprintable()):
        raise PolicyError(
            f"rollout.servers: set {KEY} to a key of the servers, made by grpo keys create trainer --scope rollout"
        )
    return key
