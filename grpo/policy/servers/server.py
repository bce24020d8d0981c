"""One rollout server as a trainer sees it: its weights, its turns, its state, and whether it can be believed.

    unloaded ── weights named by digest, missing files sent ──► loaded ── first turn recomputed ──► trusted
       ▲                                                           │
       └──────── gone, or its weights are gone (409) ◄─────────────┤   asked again after a pause
    refused ◄─── another version, a malformed reply, other weights, no key: not asked any more

What a server does wrong is a `ServerFault`, which the caller answers by asking another server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from http import HTTPStatus
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from grpo.http_client import BoundedClient, ReplyRefused
from grpo.policy.servers.model_files import HeldFile, Weights
from grpo.policy.servers.protocol import (
    FILES,
    TURNS,
    WEIGHTS,
    TurnReply,
    TurnRequest,
    WeightsReply,
)
from grpo.strict_json import decode

logger = logging.getLogger(__name__)
R = TypeVar("R", bound=BaseModel)

_CHUNK = 2**20
_ANSWER_S = 600.0
"""Longest wait for an answer. Loading weights may take minutes. Turns have `turn_timeout_s`."""
_ERROR_CHARACTERS = 100_000
"""Characters of an error that are parsed."""
_ROUNDING = 1e-6
"""Largest log-probability above 0 that rounding explains."""
_TRIES = 3
"""Times that the files of a version are sent, because a server with too little room removes some of them again."""
_LONGEST_PAUSE_S = 30.0
_MOST_DOUBLINGS = 16
_CHECKED = 16
"""Each 16th turn of a trusted server is recomputed."""
_FULL = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)

Check = Callable[[TurnRequest, TurnReply], str | None]
"""Recompute the log-probabilities of a turn. Returns what is wrong with them, or None."""


class ServerFault(Exception):
    """A server did not answer a turn as it should. Another server may."""


class WrongWeights(ConnectionError):
    """A server that was trusted has generated a turn with other weights.

    Episodes of the rollout that were not trained on have to be collected again.
    """


class RolloutServer:
    """Server at a base address such as `http://host:8000`, for one policy version."""

    def __init__(self, url: str, weights: Weights, key: str, check: Check, *, pause_s: float) -> None:
        self.url = url
        self.conversations = 0
        """Conversations that stay on this server."""
        self.failures = 0
        """Attempts in a row that failed, each after the pause of the last one."""
        self.fault = ""
        """The error of the last attempt, or an empty text."""
        self.is_refused = False
        """True if this server is not asked any more."""
        self.may_load = True
        """False if a newer version is about to be loaded, so that a server with room for one loads it once."""
        self.wrong_later: str | None = None
        """Message of `WrongWeights` if a turn after the first was wrong. Then turns before it may be wrong as well."""
        self._weights, self._key, self._check, self._pause_s = weights, key, check, pause_s
        self._client = BoundedClient(
            reply_s=_ANSWER_S,
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(_ANSWER_S, connect=10.0, write=60.0, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )
        self._again_at = self._slow_until = 0.0
        """Times of the event loop from which the server may be asked again, and from which it is not slow any more."""
        self.is_loaded = False
        """True if the server has the weights, as far as is known."""
        self._turns: int | None = None
        """Turns since the server was trusted. None before."""
        self._silent_since: float | None = None
        """Time from which a turn has waited, if the server has answered none since."""
        self._one_check = asyncio.Lock()
        self._loading: asyncio.Task[None] | None = None
        self._checks: set[asyncio.Task[None]] = set()
        """Checks in progress. Like a load they go on if another server answers the turn that began them."""

    @property
    def is_free(self) -> bool:
        """True if the server can be asked now: not refused, not in a pause, and not about to load weights.

        A server that has lost the weights to a newer version cannot be asked either.
        """
        has_weights = self.is_loaded or self.may_load
        return has_weights and not self.is_refused and not self.is_loading and self.wait_s <= 0

    def is_gone(self, tries: int, silent_s: float) -> bool:
        """True after `tries` failed attempts in a row, and if a turn has waited `silent_s` and none was answered.

        False while the server loads weights.
        """
        is_silent = self._silent_since is not None and _now() - self._silent_since >= silent_s
        return (self.failures >= tries or is_silent) and not self.is_loading

    @property
    def is_loading(self) -> bool:
        """True while weights are sent and loaded."""
        return self._loading is not None and not self._loading.done()

    @property
    def is_checking(self) -> bool:
        """True while the log-probabilities of a turn are recomputed."""
        return bool(self._checks)

    @property
    def is_slow(self) -> bool:
        """True if a turn was not answered in time a short while ago."""
        return self._slow_until > _now()

    @property
    def wait_s(self) -> float:
        """Seconds until the pause after the last failure ends."""
        return self._again_at - _now()

    async def close(self) -> None:
        """End what is in progress, close the connections, and let go of the check and the files.

        Conversations may still refer to this server, and the check has the whole model.
        """
        tasks = [*self._checks, *filter(None, [self._loading])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        del self._check, self._weights
        await self._client.aclose()

    def is_late(self, after_s: float) -> None:
        """Note that a turn was not answered within `after_s`. The server counts as slow for as long again."""
        if self.is_refused:
            return
        self.fault = f"it has not answered a turn within {after_s:g} s"
        self._slow_until = _now() + after_s
        if self._silent_since is None:
            self._silent_since = _now() - after_s

    async def load(self) -> None:
        """Let the server load the weights, and send the files that it lacks. Raises `ServerFault`.

        A load goes on if this is cancelled, because an upload may take longer than the turn that has begun it.
        """
        if not self.is_loading:
            if self.is_refused:
                raise ServerFault(self.fault)
            if self.is_loaded:
                return
            if not self.may_load:
                raise ServerFault("it has a newer version")
            self._loading = _in_background(self._load())
        assert self._loading is not None
        await asyncio.shield(self._loading)

    async def settle(self) -> None:
        """Wait for the checks in progress."""
        await asyncio.gather(*self._checks, return_exceptions=True)

    async def turn(self, request: TurnRequest) -> TurnReply:
        """Generate a turn. Raises `ServerFault`, and `WrongWeights` if earlier turns may be wrong as well."""
        await self.load()
        reply = await self._post(TURNS, request, TurnReply)
        self._check_form(request, reply)
        await self._check_weights(request, reply)
        self.failures, self._silent_since = 0, None
        return reply

    async def _load(self) -> None:
        for _ in range(_TRIES):
            reply = await self._post(WEIGHTS, self._weights.request, WeightsReply)
            if reply.version == self._weights.request.version:
                if reply.max_context is not None and reply.max_context < self._weights.max_context:
                    raise self._refuse(
                        f"it reads at most {reply.max_context} tokens, and conversations of this run may have "
                        f"{self._weights.max_context}. Start it with a larger context (--max-model-len of vLLM), or "
                        f"set rollout.max_context: {reply.max_context}"
                    )
                self.is_loaded, self._turns = True, None
                return
            if reply.version is not None:
                raise self._refuse(f"it says that it has loaded weights {reply.version}")
            for digest in reply.missing:
                if digest not in self._weights.files:
                    raise self._refuse(f"it asks for the file {digest}, which the policy does not have")
                await self._send(f"{FILES}/{digest}", self._weights.files[digest])
        raise self._failed("it does not keep the files of the weights. Raise rollouts.weights_bytes there")

    async def _send(self, address: str, file: HeldFile) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            start = 0
            while chunk := await asyncio.to_thread(file.read, _CHUNK, start):
                yield chunk
                start += len(chunk)

        size = {"content-length": str(file.size)}
        try:
            response = await self._client.put(address, content=chunks(), headers=size)
        except httpx.HTTPError as error:
            raise self._unusable(error) from error
        self._check_status(response)

    async def _post(self, address: str, body: BaseModel, kind: type[R]) -> R:
        headers = {"content-type": "application/json"}
        try:
            response = await self._client.post(address, content=body.model_dump_json(), headers=headers)
        except httpx.HTTPError as error:
            raise self._unusable(error) from error
        self._check_status(response)
        try:
            return kind.model_validate_json(response.content)
        except ValidationError as error:
            raise self._refuse(f"its answer to {address} is not in the form of grpo serve") from error

    def _check_status(self, response: httpx.Response) -> None:
        """Raise `ServerFault` unless the request succeeded."""
        status = response.status_code
        if response.is_success:
            return
        if status in _FULL:
            wait_s = _retry_after_s(response)
            if not self.is_refused:
                self._pause(f"it is full (HTTP {status})", max(self._pause_s, wait_s or 0.0))
                if self._silent_since is None:
                    self._silent_since = _now()
            raise ServerFault(self.fault)
        message = self._message(response)
        if status == HTTPStatus.CONFLICT and not self.may_load:
            self.is_loaded = False
            raise ServerFault("it has a newer version")
        if status == HTTPStatus.CONFLICT:  # restarted, or other policies took the place
            raise self._failed("it has lost the weights")
        if status == HTTPStatus.NOT_FOUND:
            raise self._refuse("it takes no rollouts. Start it with grpo serve MODEL --set rollouts={}")
        if response.is_client_error and status != HTTPStatus.REQUEST_TIMEOUT:  # it would refuse this again
            raise self._refuse(f"HTTP {status}: {message}")
        raise self._failed(f"HTTP {status}: {message}")

    def _check_form(self, request: TurnRequest, reply: TurnReply) -> None:
        """Refuse a server that replies under another version, or with something that is not a turn."""
        if reply.version != request.version:
            raise self._refuse(f"it replied with weights {reply.version} to a turn for {request.version}")
        count, ids = len(reply.token_ids), reply.token_ids
        stops = [position for position, token in enumerate(ids) if token in request.stop_token_ids]
        if not 1 <= count <= request.max_new_tokens or len(reply.logprobs) != count:
            raise self._refuse(f"it replied with {count} tokens and {len(reply.logprobs)} log-probabilities")
        if max(ids) >= self._weights.vocabulary or max(reply.logprobs) > _ROUNDING:
            raise self._refuse("it replied with a token that the model does not have, or a positive log-probability")
        if reply.stop == "length" and count < request.max_new_tokens:
            raise self._refuse(f"it cut a turn off after {count} of {request.max_new_tokens} tokens")
        if stops != ([count - 1] if reply.stop == "stop" else []):
            raise self._refuse("it replied with a turn that goes on after a stop token or ends before one")

    async def _check_weights(self, request: TurnRequest, reply: TurnReply) -> None:
        """Recompute the first turn of the server, before any turn of it is used, and each 16th turn.

        A server whose first turn is wrong is refused. A wrong later turn raises `WrongWeights`.
        """
        if self._turns is None:
            await self._finish(self._check_first(request, reply))
        if self._turns is None or self.is_refused:
            raise ServerFault(self.fault)
        self._turns += 1
        if self._turns % _CHECKED == 0:
            await self._finish(self._check_later(request, reply))

    async def _check_first(self, request: TurnRequest, reply: TurnReply) -> None:
        async with self._one_check:  # other turns wait for the check of the first one
            if self._turns is None and not self.is_refused:
                if (fault := await asyncio.to_thread(self._check, request, reply)) is not None:
                    raise self._refuse(fault)
                self._turns = 0

    async def _check_later(self, request: TurnRequest, reply: TurnReply) -> None:
        if (fault := await asyncio.to_thread(self._check, request, reply)) is not None:
            self._refuse(fault)
            self.wrong_later = f"{self.place}. Episodes that were not trained on are collected again"
            raise WrongWeights(self.wrong_later)

    async def _finish(self, check: Coroutine[Any, Any, None]) -> None:
        """Await a check, which goes on if this is cancelled, so that its verdict is not lost."""
        task = _in_background(check)
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)
        await asyncio.shield(task)

    def _unusable(self, error: httpx.HTTPError) -> ServerFault:
        """Refuse a server with a reply beyond the bounds, and note a failed attempt for any other error."""
        return self._refuse(str(error)) if isinstance(error, ReplyRefused) else self._failed(_described(error))

    def _failed(self, fault: str) -> ServerFault:
        """Note a failed attempt. The server is asked again after a pause, which doubles with each failure in a row."""
        if self.is_refused:
            return ServerFault(self.fault)
        if self.wait_s <= 0:  # the attempts of one moment count once
            self.failures += 1
            if self.failures == 1:
                logger.warning("rollout server %s: %s. Other servers go on with its conversations", self.url, fault)
        self._pause(fault, self._pause_s * 2 ** min(self.failures - 1, _MOST_DOUBLINGS))
        self.is_loaded = False
        return ServerFault(fault)

    def _pause(self, fault: str, wait_s: float) -> None:
        """Do not ask this server for a while, at most `_LONGEST_PAUSE_S`, whatever number the server has sent."""
        self.fault = fault
        wait_s = wait_s if 0 <= wait_s <= _LONGEST_PAUSE_S else _LONGEST_PAUSE_S
        self._again_at = max(self._again_at, _now() + wait_s)

    def _refuse(self, fault: str) -> ServerFault:
        """Note that the server must not be asked any more."""
        if not self.is_refused:
            self.fault, self.is_refused = fault, True
            logger.warning("%s. It is left out, and the other servers generate its turns", self.place)
        return ServerFault(fault)

    def _message(self, response: httpx.Response) -> str:
        """Message of an error in OpenAI's shape, without the key."""
        try:
            message = str(decode(response.text[:_ERROR_CHARACTERS])["error"]["message"])
        except (ValueError, KeyError, TypeError):
            message = response.reason_phrase
        return message.replace(self._key, "[key]")[:300]

    @property
    def place(self) -> str:
        """The server and what is wrong with it, for a message."""
        return f"rollout server {self.url}: {self.fault}"


def _in_background(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task. Its exception may stay unread if the caller is cancelled, and asyncio then logs no warning."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


def _now() -> float:
    return asyncio.get_running_loop().time()


def _retry_after_s(response: httpx.Response) -> float | None:
    """Seconds after which a full server may be asked again, if it says so."""
    try:
        return float(response.headers["retry-after-ms"]) / 1000
    except (KeyError, ValueError):
        pass
    try:
        return float(response.headers["retry-after"])
    except (KeyError, ValueError):
        return None


def _described(error: httpx.HTTPError) -> str:
    kind = "it does not answer" if isinstance(error, httpx.TimeoutException) else "it cannot be reached"
    return f"{kind} ({type(error).__name__})"
