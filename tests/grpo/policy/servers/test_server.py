"""One rollout server and the pool of them, with answers from here in place of HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from grpo.errors import PolicyError
from grpo.policy.servers.model_files import HeldFile, Weights
from grpo.policy.servers.pool import ServerPool
from grpo.policy.servers.protocol import TURNS, TurnReply, TurnRequest, WeightsReply, WeightsRequest
from grpo.policy.servers.server import RolloutServer, ServerFault, WrongWeights

VERSION, DIGEST = "a" * 16, "b" * 64
REQUEST = TurnRequest(
    version=VERSION, token_ids=(1, 2), stop_token_ids=(0,), temperature=1.0, max_new_tokens=2, seed=3, turn=0
)
REPLY = TurnReply(version=VERSION, token_ids=(4, 0), logprobs=(-1.0, -1.0), stop="stop")


async def _at_once() -> None:
    return


class Answering(RolloutServer):
    """Has no weights at first. `upload` and `answer` are awaited for each file and each turn."""

    def __init__(
        self,
        *,
        upload: Callable[[], Awaitable[None]] = _at_once,
        answer: Callable[[], Awaitable[Any]] = _at_once,
        check: Callable[[TurnRequest, TurnReply], str | None] = lambda request, reply: None,
        max_context: int | None = None,
    ) -> None:
        weights = Weights(
            request=WeightsRequest(version=VERSION, files={"model.safetensors": DIGEST}),
            files={DIGEST: None},  # type: ignore[dict-item]
            vocabulary=10,
            max_context=100,
        )
        super().__init__("http://127.0.0.1:1", weights, "key", check, pause_s=0.01)
        self.uploads = 0
        self._upload, self._answer, self._context, self._has_file = upload, answer, max_context, False

    async def _send(self, address: str, file: HeldFile) -> None:
        self.uploads += 1
        await self._upload()
        self._has_file = True

    async def _post(self, address: str, body: BaseModel, kind: type[Any]) -> Any:
        if address == TURNS:
            return await self._answer() or REPLY
        if not self._has_file:
            return WeightsReply(version=None, missing=(DIGEST,))
        return WeightsReply(version=VERSION, max_context=self._context)


class Conversation:
    """A conversation on no server yet."""

    server: RolloutServer | None = None

    def move(self, server: RolloutServer | None) -> None:
        self.server = server


def _pool(*servers: RolloutServer, hedge_s: float = 0.05, silent_s: float = 0.2) -> ServerPool:
    return ServerPool(servers, version=VERSION, hedge_s=hedge_s, silent_s=silent_s, pause_s=0.01, tries=5)


async def _never() -> None:
    await asyncio.sleep(60)


def test_an_upload_goes_on_if_the_turn_that_began_it_is_cancelled():
    """A checkpoint may take minutes, and another server answers the turn after `hedge_s`."""

    async def run() -> None:
        sent = asyncio.Event()

        async def upload() -> None:
            await sent.wait()

        server = Answering(upload=upload)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.turn(REQUEST), 0.05)
        assert server.is_loading
        assert not server.is_free
        sent.set()
        assert await server.turn(REQUEST) == REPLY
        assert server.uploads == 1
        await server.close()

    asyncio.run(run())


def test_if_no_server_gets_the_weights_the_rollout_begins_again():
    """The turn ends with a transient error before its own limit, which would count as a failed episode."""

    async def run() -> None:
        pool = _pool(Answering(upload=_never))
        with pytest.raises(ConnectionError, match="no rollout server has had the weights for"):
            await asyncio.wait_for(pool.ask(Conversation(), REQUEST), 10)
        await pool.close()

    asyncio.run(run())


def test_if_the_only_server_answers_nothing_the_error_is_a_transient_one():
    """It accepts the turn and hangs. The message names the server and for how long it was silent."""

    async def run() -> None:
        pool = _pool(Answering(answer=_never))
        await pool.load()
        with pytest.raises(
            ConnectionError, match=r"no rollout server answers: .* has not answered a turn within 0\.05 s"
        ):
            await asyncio.wait_for(pool.ask(Conversation(), REQUEST), 10)
        await pool.close()

    asyncio.run(run())


def test_if_the_only_server_stays_full_the_error_is_a_transient_one():
    """HTTP 503 with and without other turns in progress. A server that is full for a moment is asked again."""
    full = httpx.Response(503, headers={"retry-after": "0"}, request=httpx.Request("POST", "http://127.0.0.1:1"))

    async def run() -> None:
        refusals = 0

        async def answer() -> None:
            nonlocal refusals
            refusals += 1
            server._check_status(full)

        server = Answering(answer=answer)
        pool = _pool(server)
        await pool.load()
        with pytest.raises(ConnectionError, match=r"no rollout server answers: .* it is full \(HTTP 503\)"):
            await asyncio.wait_for(pool.ask(Conversation(), REQUEST), 10)
        assert refusals > 1
        await pool.close()

        async def full_once() -> None:
            nonlocal refusals
            refusals += 1
            if refusals == 1:
                server._check_status(full)

        refusals = 0
        server = Answering(answer=full_once)
        pool = _pool(server)
        await pool.load()
        assert await pool.ask(Conversation(), REQUEST) == REPLY
        assert not server.is_gone(5, 0.0)
        await pool.close()

    asyncio.run(run())


def test_a_server_that_hangs_costs_time_while_another_answers():
    """The turn is asked of the other one, and the silent one is not an error."""

    async def run() -> None:
        pool = _pool(Answering(answer=_never), Answering())
        await pool.load()
        for _ in range(3):
            assert await asyncio.wait_for(pool.ask(Conversation(), REQUEST), 10) == REPLY
        await pool.close()

    asyncio.run(run())


@pytest.mark.parametrize(("context", "is_taken"), [(None, True), (100, True), (99, False)])
def test_a_server_with_a_smaller_context_is_refused_before_its_first_turn(context: int | None, is_taken: bool):
    """It would cut turns off or refuse them in the middle of the rollout. The message names both settings."""

    async def run() -> None:
        pool = _pool(Answering(max_context=context))
        if is_taken:
            await pool.load()
        else:
            with pytest.raises(PolicyError, match=r"at most 99 tokens.* 100\. .*--max-model-len.*max_context: 99"):
                await pool.load()
        await pool.close()

    asyncio.run(run())


def test_a_turn_that_is_cut_off_before_its_limit_is_not_used():
    """`length` after one of two tokens: the episode would end at another limit than the config's."""

    async def run() -> None:
        async def answer() -> TurnReply:
            return TurnReply(version=VERSION, token_ids=(4,), logprobs=(-1.0,), stop="length")

        server = Answering(answer=answer)
        with pytest.raises(ServerFault, match="cut a turn off after 1 of 2 tokens"):
            await server.turn(REQUEST)
        assert server.is_refused
        await server.close()

    asyncio.run(run())


def test_a_check_that_another_server_overtakes_still_counts():
    """The 16th turn is wrong. Another server answers while it is recomputed; the end of the rollout waits for it."""

    async def run() -> None:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()
        checked = 0

        def check(request: TurnRequest, reply: TurnReply) -> str | None:
            nonlocal checked
            checked += 1
            if checked == 1:
                return None
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.3), loop).result()
            return "it says that it has other weights"

        liar = Answering(check=check)
        pool = _pool(liar)
        await pool.load()
        for _ in range(15):
            await liar.turn(REQUEST)
        turn = asyncio.create_task(liar.turn(REQUEST))
        await begun.wait()
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
        assert pool.is_asked, "its servers are not closed before the check has ended"
        with pytest.raises(WrongWeights, match="it says that it has other weights"):
            await pool.settle()
        assert liar.is_refused
        await pool.close()

    asyncio.run(run())


def test_a_refused_server_keeps_its_reason():
    """Turns that are late, full or fail afterwards do not replace it."""

    async def run() -> None:
        server = Answering()
        server._refuse("it replied with weights b")
        server.is_late(1.0)
        server._failed("it cannot be reached")
        with pytest.raises(ServerFault, match="it replied with weights b"):
            server._check_status(httpx.Response(503, request=httpx.Request("POST", "http://127.0.0.1:1")))
        assert (server.fault, server.failures) == ("it replied with weights b", 0)
        await server.close()

    asyncio.run(run())


def test_a_server_that_failed_2000_times_is_asked_again_after_the_longest_pause():
    """2 to the power of 2,000 is no float."""

    async def run() -> None:
        server = Answering()
        server.failures = 2000
        server._failed("it cannot be reached")
        assert server.failures == 2001
        assert 29 < server.wait_s <= 30
        await server.close()

    asyncio.run(run())
