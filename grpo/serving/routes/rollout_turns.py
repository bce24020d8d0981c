"""Turns of rollouts, which a training asks for by token ids. They are not logged, because the training keeps them."""

from __future__ import annotations

from typing import Any, Literal

from grpo.policy.policy import Generation, Prompt, SampledToken, Sampling
from grpo.policy.servers.protocol import TurnReply, TurnRequest
from grpo.serving.access.callers import Caller
from grpo.serving.engine.engine import EngineSession
from grpo.serving.engine.rollouts import Rollouts
from grpo.serving.engine.versions import ServedVersion
from grpo.serving.protocol.api_errors import invalid_request, overloaded
from grpo.serving.requests.service import Service
from grpo.serving.routes.streams import answerable


async def begin_turn(service: Service, rollouts: Rollouts, request: TurnRequest, caller: Caller) -> RolloutTurn:
    """Admit a turn. Raises `APIError`."""
    if service.draining:
        raise overloaded("the server is stopping", retry_after_s=2.0)
    with service.preparing():
        version = rollouts.version_of(request.version)
        if more := sorted(version.renderer(()).stop_ids - set(request.stop_token_ids)):
            message = f"turns of this model end with token {more[0]} as well. Add it, or roll out without servers"
            raise invalid_request(message, param="stop_token_ids", code="unsupported_value")
        return RolloutTurn(service, version, request)


class RolloutTurn:
    """Admitted turn of a rollout."""

    def __init__(self, service: Service, version: ServedVersion, request: TurnRequest) -> None:
        self._version, self._request = version, request
        room = max(1, version.max_context - len(request.token_ids))
        self._max_new_tokens = min(request.max_new_tokens, room)
        self.max_tokens = len(request.token_ids) + self._max_new_tokens
        """Most tokens that the turn may need."""
        self.admission = service.admit(version, 1, self.max_tokens)
        """Admission for this turn. The route must call `admission.release()`, also when the turn fails."""

    async def body(self) -> dict[str, Any]:
        """Generate the turn. Cancelling this takes it out of the batch."""
        task = self.admission.generate(self._generate())
        try:
            generation = await task
        except Exception as error:
            raise answerable(error) from error
        finally:
            task.cancel()
        self.admission.used_tokens = len(self._request.token_ids) + len(generation.token_ids)
        await self.admission.settle()
        assert generation.logprobs is not None
        return TurnReply(
            version=self._version.served.policy.hash,
            token_ids=tuple(generation.token_ids),
            logprobs=tuple(generation.logprobs),
            stop=self._stop(generation),
            cached_tokens=generation.cached_tokens,
        ).model_dump(mode="json")

    async def _generate(self) -> Generation:
        request, stops = self._request, frozenset(self._request.stop_token_ids)

        def on_token(token: SampledToken) -> bool:
            return token.id in stops

        session = await self._version.open(self._version.renderer(()))
        assert isinstance(session, EngineSession)
        session.turns = request.turn
        try:
            return await session.generate(
                Prompt(new_ids=request.token_ids, on_token=on_token),
                Sampling(temperature=request.temperature, max_new_tokens=self._max_new_tokens, seed=request.seed),
            )
        finally:
            session.close()

    def _stop(self, generation: Generation) -> Literal["stop", "length"]:
        """Why the turn ended, as a sampler in the process of the trainer says it."""
        return "stop" if generation.token_ids[-1] in self._request.stop_token_ids else "length"
