"""Completions of one prompt, which rollouts sample from a policy behind this server, see `CompletionsPolicy`.

Each choice is logged as a turn of a separate conversation, with the prompt as the only message before it, without
consent and with the kind `completion`. Because a program has written the prompt, it is neither joined to conversations
nor trained on.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo.errors import GRPOError
from grpo.log.records import COMPLETION, ServedTurn, TurnStatus
from grpo.messages import Message
from grpo.policy.policy import Generation, Prompt, SampledToken, Sampling
from grpo.renderers.chat_template import Renderer
from grpo.serving.access.callers import Caller
from grpo.serving.engine.engine import ProcessPolicy
from grpo.serving.engine.versions import ServedVersion
from grpo.serving.protocol.api_errors import erased_error, invalid_request, is_api_error
from grpo.serving.protocol.chat_response import Usage
from grpo.serving.protocol.completion_request import DEFAULT_MAX_TOKENS, CompletionRequest
from grpo.serving.requests.prompt_sizes import PIECE, count_tokens
from grpo.serving.requests.service import Service
from grpo.serving.requests.token_stream import TokenStream
from grpo.serving.routes.streams import answerable
from grpo.trajectories import Turn
from grpo.user_failures import describe, user_code

logger = logging.getLogger(__name__)
_CHARACTERS_PER_ID = 4
"""A token id of a prompt counts as this many characters, because it is decoded."""


async def begin_completion(service: Service, request: CompletionRequest, caller: Caller) -> CompletionHandler:
    """Admit a request for completions. Raises `APIError` if it cannot be answered."""
    with service.preparing():
        version, prompt = await _prepare(service, request, caller)
    return CompletionHandler(service, request, caller, version, prompt)


async def _prepare(
    service: Service, request: CompletionRequest, caller: Caller
) -> tuple[ServedVersion, _RenderedPrompt]:
    """Version that answers, and the prompt as this version reads it."""
    while True:
        version = service.version_of(request.model)
        if not isinstance(version.served.policy, ProcessPolicy):
            message = "this server gives completions only if the model runs in it. Ask the server of the model for them"
            raise invalid_request(message, param="model", code="unsupported_value")
        size, prompt = await service.size_of(version), request.prompt
        characters = len(prompt) if isinstance(prompt, str) else _CHARACTERS_PER_ID * len(prompt)
        most = size.completion_characters
        if isinstance(prompt, str) and most is not None and characters > most:
            message = f"the prompt has {characters} characters, and at most {most} can fit the context"
            raise invalid_request(message, param="prompt", code="context_length_exceeded")
        rendered = await service.preparation.run(caller.key_hash, characters, partial(_render, version, request))
        if not version.retired:
            return version, rendered


@dataclass(frozen=True, slots=True, kw_only=True)
class _RenderedPrompt:
    """Prompt of a request, which all of the request's choices share."""

    renderer: Renderer
    ids: list[int]
    text: str
    array: NDArray[np.int32]
    """Tokens of the prompt as they are logged."""


def _render(version: ServedVersion, request: CompletionRequest) -> _RenderedPrompt:
    """Tokens and text of a prompt. Runs on a thread. Raises `APIError` if the prompt does not fit."""
    prompt = request.prompt
    with user_code("the renderer", passes=is_api_error):
        renderer = version.renderer(())
        tokenizer = renderer.tokenizer
        if isinstance(prompt, str):
            if len(prompt) > PIECE:  # refuse a prompt that is surely too long before all of it is read
                message = Message(role="user", content=prompt)
                count_tokens(renderer, [message], known=0, most=version.max_context, fits=False, param="prompt")
            ids = list(map(int, tokenizer(prompt, add_special_tokens=request.add_special_tokens)["input_ids"]))
        else:
            ids = prompt
        if not ids:
            raise invalid_request("the prompt is empty. It has at least one token", param="prompt")
        for name, tokens in (("prompt", ids), ("stop_token_ids", request.stop_token_ids or [0])):
            if max(tokens) >= len(tokenizer):
                text = f"{name} has token {max(tokens)}. The model has tokens 0 to {len(tokenizer) - 1}"
                raise invalid_request(text, param=name)
        if len(ids) >= version.max_context:
            text = f"the prompt has {len(ids)} tokens, but the context has {version.max_context}"
            raise invalid_request(text, param="prompt", code="context_length_exceeded")
        text = prompt if isinstance(prompt, str) else str(tokenizer.decode(prompt))
    return _RenderedPrompt(renderer=renderer, ids=ids, text=text, array=np.asarray(ids, np.int32))


class CompletionHandler:
    """One request for completions in progress. Raises `APIError` if the server has no capacity for it."""

    def __init__(
        self,
        service: Service,
        request: CompletionRequest,
        caller: Caller,
        version: ServedVersion,
        prompt: _RenderedPrompt,
    ) -> None:
        self.version, self._choices = version, request.n
        self._service, self._request, self._caller = service, request, caller
        self._id = service.log.ids.new_conversation(caller.key_hash)
        self._received, self._started = service.now(), time.monotonic()
        self._renderer, self._tokenizer = prompt.renderer, prompt.renderer.tokenizer
        self._rendered, self._prompt = prompt, prompt.ids
        seed = request.to_seed()
        self._seed = secrets.randbits(63) if seed is None else seed
        room = self.version.max_context - len(self._prompt)
        self._max_new_tokens = min(room, request.max_tokens or DEFAULT_MAX_TOKENS)
        self.max_tokens = request.n * (len(self._prompt) + self._max_new_tokens)
        """Most tokens that the request may need."""
        self._done: dict[int, tuple[dict[str, Any], Usage]] = {}
        self.admission = service.admit(self.version, request.n, self.max_tokens)
        """Admission for this request. The route must call `admission.release()`, also when the request fails."""
        self.admission.conversation_id, self.admission.user = self._id, request.user

    async def body(self) -> dict[str, Any]:
        """Generate and log all choices, and return the body of the response. Cancelling this aborts the choices."""
        tasks = [self.admission.generate(self._choose(index)) for index in range(self._choices)]
        try:
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            if self.admission.erased:  # also while a choice is being logged
                raise erased_error() from None
            raise
        except Exception as error:
            raise answerable(error) from error
        finally:
            for task in tasks:
                task.cancel()
        await self.admission.settle()
        served = self.version.served
        ordered = [self._done[index] for index in range(self._choices)]
        return {
            "id": f"cmpl-{self._id}",
            "object": "text_completion",
            "created": int(self._received.timestamp()),
            "model": self._request.model,
            "system_fingerprint": f"{served.version}-{served.policy.hash}",
            "choices": [choice for choice, _ in ordered],
            "usage": Usage.total(usage for _, usage in ordered).to_json(),
        }

    async def _choose(self, index: int) -> None:
        """Generate and log one choice."""
        stream = TokenStream(self._renderer, self._request.stops)
        stops = frozenset(self._request.stop_token_ids or ())
        status: TurnStatus = "failed"
        reason, generation = "", None

        def on_token(token: SampledToken) -> bool:
            return stream(token) or token.id in stops

        try:
            session = await self.version.open(self._renderer)
            try:
                prompt = Prompt(new_ids=self._prompt, on_token=on_token)
                generation = await session.generate(prompt, self._sampling(index))
            finally:
                session.close()
            status, reason = "answered", "length" if generation.stop == "length" else "stop"
        except asyncio.CancelledError:
            status, reason = "aborted", "the client went away"
            if self.admission.erased:
                status, reason = "erased", "erased while it ran"
            raise
        except BaseException as error:
            self._service.count_error()
            reason = describe(error, with_place=False)
            raise
        finally:
            self.admission.used_tokens += len(self._prompt) + len(stream.tokens)
            if generation is None:
                await asyncio.shield(
                    self.admission.start(self._log_unanswered(index, stream, status=status, reason=reason))
                )
        text = self._text(generation) if stream.stopped_text is None else stream.stopped_text
        usage = Usage(prompt=len(self._prompt), completion=len(generation.token_ids))
        turn = self._record(index, stream, status, reason, generation=generation, text=text)
        await asyncio.shield(self.admission.start(self._log_answered(index, stream, turn, usage)))
        self._done[index] = (self._choice(index, text, reason, generation, stream), usage)

    def _sampling(self, index: int) -> Sampling:
        return self._request.to_sampling(
            index,
            temperature=self.version.served.temperature,
            max_new_tokens=self._max_new_tokens,
            seed=self._seed,
            top_k=max(0, self._request.top_k or 0),
            top_logprobs=self._request.logprobs or 0,
        )

    def _text(self, generation: Generation) -> str:
        ids, skip = generation.token_ids, self._request.skip_special_tokens
        if skip and ids and ids[-1] in self._renderer.stop_ids:
            ids = ids[:-1]
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False))

    def _choice(
        self, index: int, text: str, reason: str, generation: Generation, stream: TokenStream
    ) -> dict[str, Any]:
        """OpenAI's choice, with the token ids of vLLM."""
        choice: dict[str, Any] = {"index": index, "text": text, "finish_reason": reason, "logprobs": None}
        if self._request.logprobs is not None:
            choice["logprobs"] = self._logprobs(stream.tokens)
        if self._request.return_token_ids:
            choice |= {"token_ids": generation.token_ids, "prompt_token_ids": self._prompt}
        return choice

    def _logprobs(self, tokens: Sequence[SampledToken]) -> dict[str, Any]:
        texts = [self._tokenizer.decode([token.id]) for token in tokens]
        tops = [dict(((token.id, token.logprob), *token.top_logprobs)) for token in tokens]
        return {
            "tokens": [self._name(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{self._name(id_): value for id_, value in top.items()} for top in tops],
            "text_offset": [0, *accumulate(map(len, texts))][: len(tokens)],
        }

    def _name(self, id_: int) -> str:
        if self._request.return_tokens_as_token_ids:
            return f"token_id:{id_}"
        return str(self._tokenizer.decode([id_]))

    async def _log_answered(self, index: int, stream: TokenStream, turn: ServedTurn, usage: Usage) -> None:
        """Log an answered turn. If it was erased before this task began, log only that."""
        if self.admission.erased:
            await self._log_unanswered(index, stream, status="erased", reason="erased while it ran")
        else:
            await self._service.record(turn, usage, stream.times)

    async def _log_unanswered(self, index: int, stream: TokenStream, *, status: TurnStatus, reason: str) -> None:
        try:
            turn = self._record(index, stream, status, reason)
            await self._service.record(turn, Usage(prompt=0, completion=len(stream.tokens)), stream.times)
        except GRPOError as error:
            logger.error("completion %s was not logged: %s", self._id, error)

    def _record(
        self,
        index: int,
        stream: TokenStream,
        status: TurnStatus,
        reason: str,
        *,
        generation: Generation | None = None,
        text: str = "",
    ) -> ServedTurn:
        served, sampling, settings = self.version.served, self._sampling(index), self._service.settings
        given, user = self._rendered.array, self._request.user
        if status == "erased":
            given, user = given[:0], None
        start, reply = len(given), [] if generation is None else generation.token_ids
        logprobs = None if generation is None else generation.logprobs
        turns = []
        if start:
            turns.append(Turn(message=Message(role="user", content=self._rendered.text), start=0, stop=start))
        if generation is not None:
            turns.append(Turn(message=Message(role="assistant", content=text), start=start, stop=start + len(reply)))
        return ServedTurn(
            id=f"{self._id}-{index}" if index else self._id,
            request_id=self._id,
            conversation_id=self._id,
            parent=None,
            time=self._received,
            status=status,
            reason=reason,
            model=served.version,
            policy_hash=served.policy.hash,
            renderer_hash=self._renderer.hash,
            turns=tuple(turns),
            token_ids=np.concatenate([given, np.asarray(reply, np.int32)]),
            loss_mask=np.arange(start + len(reply)) >= start,
            sampler_logprobs=np.asarray(np.pad(logprobs or [np.nan] * len(reply), (start, 0)), np.float32),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
            choice=index,
            first_token_s=stream.times[0] - self._started if stream.times else None,
            latency_s=time.monotonic() - self._started,
            key=self._caller.key_hash,
            user="" if user is None else self._service.log.user_hash(user),
            licence=settings.licence,
            metadata={"kind": COMPLETION},
        )
