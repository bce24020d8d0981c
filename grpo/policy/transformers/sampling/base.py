"""Queue of turns of many conversations, and sampling of their next tokens from logits.

Each conversation has its own random numbers, so its tokens do not depend on the rest of the batch (up to the last bits
of floating-point sums).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

import numpy as np
import torch
from llguidance import LLMatcher
from transformers import PreTrainedModel

from grpo.errors import PolicyError
from grpo.policy.grammars import GrammarError
from grpo.policy.policy import Generation, Policy, Prompt, SampledToken, Sampling
from grpo.policy.transformers.forward.passes import forward_path
from grpo.policy.transformers.sampling.inverse_transform import NO_TOKEN, inverse_transform
from grpo.policy.transformers.sampling.logits_filters import filter_logits, likeliest
from grpo.policy.transformers.sampling.token_masks import TokenMasks
from grpo.trajectories import PolicySpan

_NOT_FINITE = (
    "the model's logits after this conversation are NaN or infinite, because its weights are damaged or its dtype "
    "cannot hold its numbers. Load other weights, or set dtype float32"
)
_IDLE_ROUNDS = 2
"""Event-loop rounds without a new turn before the next forward pass starts."""


class ModelPolicy(Policy, Protocol):
    """A policy with its model in this process."""

    @property
    def model(self) -> PreTrainedModel:
        """The model."""


@dataclass(slots=True)
class Turn:
    """A turn in progress."""

    session: TurnSession
    sampling: Sampling
    uniforms: np.ndarray
    unread: list[int]
    """Tokens that the model has not processed yet."""
    future: asyncio.Future[Generation]
    on_token: Callable[[SampledToken], bool | None] | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    matcher: LLMatcher | None = None
    """Place of the turn in its grammar."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed, because another session has computed their keys and values."""
    submitted: float = field(default_factory=time.monotonic)


class TurnSession:
    """One conversation of a `TurnSampler`."""

    def __init__(self, sampler: TurnSampler) -> None:
        self._sampler = sampler
        self.slot: int | None = None
        """Slot of the KV cache, if the sampler has slots."""
        self.history: list[int] = []
        """Tokens that the model has processed."""
        self.turns = 0
        self.last: int | None = None
        """Last generated token. The model processes it with the next turn."""
        self.unread: list[int] = []
        """Tokens before `last` that the next turn reads again, because the sampler's model was replaced."""
        self.policy_spans: list[PolicySpan] = []
        """Policies that have generated tokens, each with the position of its first one in the conversation."""

    @property
    def length(self) -> int:
        """Number of tokens that the model has processed."""
        return len(self.history)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Session.generate`."""
        return await self._sampler.submit(self, prompt, sampling).future

    def fork(self, tokens: int) -> TurnSession:
        """See `ForkableSession.fork`."""
        assert self.last is not None
        assert 0 < tokens <= self.length + len(self.unread) + 1
        session = TurnSession(self._sampler)
        *known, session.last = [*self.history, *self.unread, self.last][:tokens]
        session.history, session.unread = known[: self.length], known[self.length :]
        session.turns = self.turns
        session.policy_spans = [span for span in self.policy_spans if span.start < tokens]
        self._sampler.share(self, session)
        return session

    def close(self) -> None:
        """See `Session.close`. A turn in progress is cancelled."""
        self._sampler.close(self)


class TurnSampler(ABC):
    """Sampler of one model for concurrent conversations, used as an async context manager."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop_ids: Collection[int],
        concurrency: int,
        max_context: int,
        policy_hash: str = "",
    ) -> None:
        self._model = model
        self.policy_hash = policy_hash
        """Version of the weights, which `TurnSession.policy_spans` records."""
        self._stop_ids = frozenset(stop_ids)
        self._concurrency = concurrency
        self._max_context = max_context
        self._device = model.device
        self._waiting: list[Turn] = []
        self._active: list[Turn] = []
        self._worker: asyncio.Task[None] | None = None
        self._logprobs = torch.empty(0)
        """Memory for the log-probabilities of a pass, which the next pass uses again."""
        self.masks: TokenMasks | None = None
        """Masks of turns with a grammar; None if the sampler reads no grammars, e.g. in a rollout."""
        self.on_pass: Callable[[], None] = lambda: None
        """Called after each forward pass."""
        self.tokens_processed = 0
        self.tokens_generated = 0
        self.turns_admitted = 0
        self.queue_s = 0.0
        """Seconds that all admitted turns have waited together."""

    @property
    def running(self) -> int:
        """Number of turns in the batch."""
        return len(pending(self._active))

    @property
    def waiting(self) -> int:
        """Number of turns that wait to be admitted."""
        return len(pending(self._waiting))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._worker is not None:
            self._worker.cancel()

    def scale(self, concurrency: int) -> None:
        """Set the number of turns admitted at once, up to the initial number. Call it on the sampler's event loop."""
        self._concurrency = concurrency
        if pending(self._waiting):
            self._start_worker()

    def open(self) -> TurnSession:
        """Start a conversation."""
        return TurnSession(self)

    def close(self, session: TurnSession) -> None:
        """Cancel the turn of a session, free what it holds, and go on with turns that wait for a slot."""
        for turn in (*self._active, *self._waiting):
            if turn.session is session:
                turn.future.cancel()
        self.release(session)
        if pending(self._waiting):
            self._start_worker()

    def share(self, session: TurnSession, fork: TurnSession) -> None:
        """Let a fork use what is held of the tokens of its session. Here it reads all of them with its next turn."""
        fork.history, fork.unread = [], [*fork.history, *fork.unread]

    @abstractmethod
    def release(self, session: TurnSession) -> None:
        """Free what a finished conversation holds."""

    async def prepare_policy(self, policy: ModelPolicy) -> None:
        """See `ContinuousSampler.prepare_policy`. Raises `PolicyError` as `replace_model`, which needs nothing else."""
        self._check_path(policy.model, policy.hash)

    def replace_policy(self, policy: ModelPolicy) -> None:
        """See `ContinuousSampler.replace_policy` and `replace_model`."""
        self.replace_model(policy.model, policy.hash)

    def replace_model(self, model: PreTrainedModel, policy_hash: str) -> None:
        """Generate all further tokens with another policy, also in turns that are in progress.

        Keys and values of the earlier weights are dropped, and each conversation reads its tokens again in its next
        pass. If they were kept, a token's log-probability would belong to neither policy, and the learner could not
        compute its importance ratio. Call it on the sampler's event loop, where it runs between two passes.

        Raises `PolicyError` if the model needs another forward path.
        """
        self._check_path(model, policy_hash)
        self._model, self.policy_hash = model, policy_hash
        self._forget_passes()

    def _check_path(self, model: PreTrainedModel, policy_hash: str) -> None:
        path, new_path = forward_path(self._model), forward_path(model)
        if new_path != path:
            raise PolicyError(
                f"policy {policy_hash} needs forward path {new_path}, and its predecessor {path}, so that it cannot "
                "replace it between two passes. Set rollout.mode to stages"
            )

    @abstractmethod
    def _forget_passes(self) -> None:
        """Drop what earlier passes have computed, so that the next one reads the conversations from the beginning."""

    def _abandon(self, session: TurnSession) -> None:
        """Forget the history of a conversation after a failed pass, because the cache may hold only a part of it."""
        session.history.clear()

    @abstractmethod
    def _admit(self) -> None:
        """Drop cancelled turns, and move waiting turns to the active ones."""

    def _activate(self, turn: Turn) -> None:
        """Move a waiting turn to the active ones."""
        self.turns_admitted += 1
        self.queue_s += time.monotonic() - turn.submitted
        self._active.append(turn)

    @abstractmethod
    def _step(self) -> None:
        """Run one forward pass over the unread tokens of the active turns, and sample one token for each."""

    def submit(self, session: TurnSession, prompt: Prompt, sampling: Sampling) -> Turn:
        """Queue a turn. Raises `PolicyError` if its grammar cannot be compiled, or if this sampler has no masks."""
        unread = [*session.unread, *([] if session.last is None else [session.last]), *prompt.new_ids]
        session.unread = []
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        uniforms = sampling.uniforms(session.turns)
        turn = Turn(session, sampling, uniforms, unread, future, prompt.on_token, matcher=self._matcher(sampling))
        self._waiting.append(turn)
        self._start_worker()
        return turn

    def _matcher(self, sampling: Sampling) -> LLMatcher | None:
        if sampling.grammar is None:
            return None
        if self.masks is None:
            raise PolicyError("this sampler reads no grammar. Leave sampling.grammar out")
        return self.masks.grammars.matcher(sampling.grammar)

    def _start_worker(self) -> None:
        if self._worker is None or self._worker.done():
            # an empty context: the task serves all conversations and must not inherit the first caller's variables
            self._worker = asyncio.create_task(self._run(), context=Context())

    async def _run(self) -> None:
        """Run forward passes until no turn is left, or until all that are left wait for a slot.

        An error is raised in all conversations with a turn, unless it belongs to only one conversation, see `_sample`.
        """
        try:
            while True:
                await self._wait_until_idle()
                self._admit()
                if not self._active:
                    return
                if self.masks is not None:
                    self.masks.begin({turn.matcher: self._left(turn) for turn in self._active if turn.matcher})
                with torch.inference_mode():
                    self._step()
                self.on_pass()
        except BaseException as error:
            active, waiting = self._active, self._waiting
            self._active, self._waiting = [], []
            for turn in (*active, *waiting):
                if not turn.future.done():
                    turn.future.set_exception(error)
            for turn in active:
                with suppress(Exception):  # the device may have failed, which `error` already reports
                    self._abandon(turn.session)
            raise

    async def _wait_until_idle(self) -> None:
        """Let the conversations of finished turns run until they have submitted their next turns."""
        idle_rounds, waiting = 0, len(self._waiting)
        while idle_rounds < _IDLE_ROUNDS:
            await asyncio.sleep(0)
            idle_rounds = idle_rounds + 1 if len(self._waiting) == waiting else 0
            waiting = len(self._waiting)

    def _sample(self, turns: list[Turn], rows: Sequence[int], logits: torch.Tensor) -> None:
        """Sample one token per turn by inverse transform from its row of logits [rows, vocabulary].

        Finished turns leave the batch. Turns with the same row and the same filters share a distribution. A turn with a
        grammar has its own distribution, over the tokens that the grammar allows. The method overwrites the logits and
        reuses the memory of the log-probabilities, because page faults of new memory take longer than the arithmetic.

        If a row is not finite, a grammar takes too much work, or a callback raises, only the turn concerned fails.
        """
        filters = [
            (turn.sampling.temperature, turn.sampling.top_k, turn.sampling.top_p, turn.matcher and id(turn.matcher))
            for turn in turns
        ]
        first = {key: index for index, key in reversed(list(enumerate(zip(rows, filters, strict=True))))}
        distinct = sorted(first.items())  # one turn of each distribution, in the order of the rows
        place = {key: index for index, (key, _) in enumerate(distinct)}
        places = torch.tensor([place[key] for key in zip(rows, filters, strict=True)], device=self._device)
        samplings = [turns[index].sampling for _, index in distinct]
        read = [row for (row, _), _ in distinct]
        if read != list(range(len(logits))):
            logits = logits[torch.tensor(read, device=self._device)]
        temperatures = torch.tensor([1.0 if s.greedy else s.temperature for s in samplings], device=self._device)
        scores = logits.float().div_(temperatures[:, None])
        if self.masks is not None:
            self.masks.apply(scores, [turns[index].matcher for _, index in distinct])
        filtered = filter_logits(scores, samplings)
        if self._logprobs.numel() < scores.numel():
            self._logprobs = torch.empty_like(scores).flatten()
        logprobs = torch.log_softmax(filtered, dim=-1, out=self._logprobs[: scores.numel()].view_as(scores))
        uniforms = torch.tensor([turn.uniforms[len(turn.token_ids)] for turn in turns], device=self._device)
        probabilities = torch.exp(logprobs, out=scores) if filtered is scores else logprobs.exp()
        sampled = inverse_transform(probabilities, places, uniforms)
        if filtered is not scores and any(turn.on_token or turn.sampling.top_logprobs for turn in turns):
            logprobs = torch.log_softmax(scores, dim=-1)
        token_logprobs = logprobs[places, sampled].tolist()
        top_logprobs = likeliest(logprobs, places, [turn.sampling.top_logprobs for turn in turns])
        self._active = []
        failed: list[tuple[Turn, Exception]] = []
        for turn, token, logprob, top in zip(turns, sampled.tolist(), token_logprobs, top_logprobs, strict=True):
            if turn.matcher is not None and turn.matcher.is_error():
                failed.append((turn, GrammarError(turn.matcher.get_error().strip())))
                continue
            if token == NO_TOKEN:
                failed.append((turn, PolicyError(_NOT_FINITE)))
                continue
            turn.session.history += turn.unread
            self._record_policy(turn.session)
            turn.token_ids.append(token)
            turn.logprobs.append(logprob)
            turn.top_logprobs.append(top)
            turn.unread = [token]
            is_completed = turn.matcher is not None and self.masks is not None and self.masks.read(turn.matcher, token)
            self.tokens_generated += 1
            try:
                sampled_token = SampledToken(id=token, logprob=logprob, top_logprobs=top)
                ended = turn.on_token is not None and turn.on_token(sampled_token)
            except Exception as error:  # noqa: BLE001 - whatever the caller's function raises fails only its turn
                failed.append((turn, error))
                continue
            context_full = turn.session.length + 1 >= self._max_context
            if token in self._stop_ids:
                self._finish(turn, "stop")
            elif ended:
                self._finish(turn, "callback")
            elif is_completed or len(turn.token_ids) == turn.sampling.max_new_tokens or context_full:
                self._finish(turn, "length")
            else:
                self._active.append(turn)
        for turn, failure in failed:  # last, because a follower with a complete history may take the failed turn's slot
            if not turn.future.done():
                turn.future.set_exception(failure)
            self._abandon(turn.session)

    def _left(self, turn: Turn) -> int:
        """Number of tokens that a turn may still sample, or 0 if its reply is not completed at its limit."""
        in_context = max(1, self._max_context - turn.session.length - len(turn.unread))
        return min(turn.sampling.max_new_tokens - len(turn.token_ids), in_context) if turn.sampling.completes else 0

    def _record_policy(self, session: TurnSession) -> None:
        """Begin a span if another policy than before has generated the token after the session's history."""
        spans = session.policy_spans
        if not spans or spans[-1].policy_hash != self.policy_hash:
            spans.append(PolicySpan(policy_hash=self.policy_hash, start=session.length))

    def _finish(self, turn: Turn, stop: Literal["stop", "length", "callback"]) -> None:
        turn.session.last = turn.token_ids[-1]
        turn.session.turns += 1
        if not turn.future.cancelled():
            turn.future.set_result(
                Generation(
                    token_ids=turn.token_ids,
                    logprobs=turn.logprobs if turn.sampling.unfiltered else None,
                    stop=stop,
                    top_logprobs=turn.top_logprobs if turn.sampling.top_logprobs else None,
                    cached_tokens=turn.cached_tokens,
                )
            )


def pending(turns: list[Turn]) -> list[Turn]:
    """The turns that were not cancelled."""
    return [turn for turn in turns if not turn.future.cancelled()]
