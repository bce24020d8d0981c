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

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from grpo.config.rollout import StartedServers
from grpo.errors import ConfigError, PolicyError
from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.policy.servers.model_files import Weights
from grpo.policy.servers.pool import ServerPool
from grpo.policy.servers.protocol import TurnReply, TurnRequest
from grpo.policy.servers.server import Check, RolloutServer
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
        silent_s: float,
        pause_s: float = 0.5,
        tries: int = 5,
    ) -> None:
        """`pause_s` is the first pause after a failure.

        A server counts as gone after `tries` failures in a row, and if it answers no turn for `silent_s`.
        """
        self._key = server_key()
        self.hash = weights.request.version
        self.max_context = max_context
        self.tokenizer = tokenizer
        self._urls, self._weights, self._check = urls, weights, check
        self._hedge_s, self._silent_s, self._pause_s, self._tries = hedge_s, silent_s, pause_s, tries

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[ServersSampler]:
        """See `Policy.sampler`. Waits until a server has the weights, and up to `hedge_s` for the others."""
        sampler = ServersSampler(tuple(sorted(renderer.stop_ids)))
        try:
            await sampler.prepare_policy(self)
            sampler.replace_policy(self)
            del self  # a rollout that goes on with later versions does not keep the model of the first one
            yield sampler
            await sampler.settle()
        finally:
            await sampler.close()

    def open_pool(self) -> ServerPool:
        """The servers for this version. Call it on the event loop of the rollout, and close the pool."""
        servers = [
            RolloutServer(url, self._weights, self._key, self._check, pause_s=self._pause_s) for url in self._urls
        ]
        return ServerPool(
            servers,
            version=self.hash,
            hedge_s=self._hedge_s,
            silent_s=self._silent_s,
            pause_s=self._pause_s,
            tries=self._tries,
        )


class ServersSampler:
    """Conversations on the servers. Each turn has the version of the policy that was the newest when it began."""

    def __init__(self, stop_ids: tuple[int, ...]) -> None:
        self.stop_ids = stop_ids
        self._pools: dict[str, ServerPool] = {}
        """Servers of the versions that are prepared, in use, or still generate turns."""
        self._version = ""
        self._prepared: list[str] = []
        """Versions that are prepared, or are being prepared, and are not in use yet."""

    @property
    def pool(self) -> ServerPool:
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

    async def settle(self) -> None:
        """Wait for the checks of turns that are in progress. Raises `WrongWeights` if one of them fails."""
        for pool in tuple(self._pools.values()):
            await pool.settle()

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

    async def _ask(self, pool: ServerPool, sampling: Sampling) -> TurnReply | None:
        """Reply to the turn after the tokens so far, see `ServerPool.ask`."""
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
