"""The servers of a rollout for one version of the policy: which one is asked for a turn, and when none is left."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Protocol

from grpo.errors import PolicyError
from grpo.policy.servers.protocol import TurnReply, TurnRequest
from grpo.policy.servers.server import RolloutServer, ServerFault, WrongWeights


class Conversation(Protocol):
    """A conversation that stays on a server."""

    server: RolloutServer | None
    """Server that has generated the last turn."""

    def move(self, server: RolloutServer | None) -> None:
        """Let the conversation go on at this server."""


class ServerPool:
    """The servers of a rollout, for one version of the policy."""

    def __init__(
        self,
        servers: Sequence[RolloutServer],
        *,
        version: str,
        hedge_s: float,
        silent_s: float,
        pause_s: float,
        tries: int,
    ) -> None:
        self.version = version
        self.is_replaced = False
        """True if turns that begin from now on have a newer version."""
        self._servers = servers
        self._hedge_s, self._silent_s, self._pause_s, self._tries = hedge_s, silent_s, pause_s, tries
        self._loading: list[asyncio.Task[None]] = []
        self._turns = 0

    @property
    def is_asked(self) -> bool:
        """True if a turn or the check of a turn is in progress."""
        return self._turns > 0 or any(server.is_checking for server in self._servers)

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

    async def settle(self) -> None:
        """Wait for the checks in progress. Raises `WrongWeights` if a turn that was used is wrong."""
        for server in tuple(self._servers):
            await server.settle()
        self._check_no_turn_was_wrong()

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

    async def ask(self, session: Conversation, request: TurnRequest) -> TurnReply | None:
        """Reply of the session's server, or of another one that the session then moves to.

        None if no server has begun the turn, and this version was replaced.

        Raises `ConnectionError` if every server is gone, because a later try may succeed, and `PolicyError` if every
        server is refused.
        """
        asked: dict[asyncio.Task[TurnReply], RolloutServer] = {}
        began = asyncio.get_running_loop().time()
        self._turns += 1
        try:
            while asked or not self.is_replaced:
                server = self._next(session, asked.values())
                if server is not None:
                    if server is not session.server:
                        session.move(server)
                    asked[asyncio.create_task(server.turn(request))] = server
                elif not asked:
                    self._check_any_is_left(began)
                    await asyncio.sleep(self._until_free_s())
                    continue
                done, _ = await asyncio.wait(asked, timeout=self._hedge_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    for late in asked.values():
                        late.is_late(self._hedge_s)
                    self._check_any_is_left(began)
                for task in done:
                    replied = asked.pop(task)
                    try:
                        reply = task.result()
                    except ServerFault:
                        self._check_any_is_left(began)
                        continue
                    self._check_no_turn_was_wrong()
                    session.move(replied)
                    return reply
            return None
        finally:
            self._turns -= 1
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    def _next(self, session: Conversation, asked: Collection[RolloutServer]) -> RolloutServer | None:
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

    def _check_any_is_left(self, began: float | None = None) -> None:
        """Raise an error with what is wrong with each server, if none can be expected to answer.

        `began` is the time at which a turn began to wait. If it has waited `silent_s` for servers that all load the
        weights again, it would end by its own limit, and its episode would be lost. A rollout that begins again waits
        for the weights without a limit.
        """
        self._check_no_turn_was_wrong()
        faults = "; ".join(server.place for server in self._servers)
        if all(server.is_refused for server in self._servers):
            raise PolicyError(f"no rollout server can be used: {faults}. Correct rollout.servers or the servers")
        if all(server.is_refused or server.is_gone(self._tries, self._silent_s) for server in self._servers):
            raise ConnectionError(f"no rollout server answers: {faults}. Start them, or correct rollout.servers")
        waited_s = 0.0 if began is None else asyncio.get_running_loop().time() - began
        if waited_s >= self._silent_s and not any(server.is_loaded for server in self._servers):
            raise ConnectionError(
                f"no rollout server has had the weights for {waited_s:.0f} s, because each of them was restarted or "
                "has other work. The rollout begins again"
            )

    def _check_no_turn_was_wrong(self) -> None:
        """Raise `WrongWeights` if a turn was, also for turns that see this before the turn that was wrong has ended."""
        for server in self._servers:
            if server.wrong_later is not None:
                raise WrongWeights(server.wrong_later)


def _has_ended_well(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
