"""Tokens of a turn in progress, between the engine and the response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from tokenizers.decoders import DecodeStream

from grpo.policy.policy import SampledToken
from grpo.policy.tokenizer import token_bytes
from grpo.renderers.chat_template import Renderer
from grpo.serving.protocol.chat_response import TokenLogprob


class TokenStream:
    """Tokens of a turn as they come from the engine. It ends the turn when the text has one of `stops`.

    Without `stops`, tokens are only decoded when the text is read, so a reply that is not streamed is never decoded.
    """

    def __init__(self, renderer: Renderer, stops: tuple[str, ...]) -> None:
        self.tokens: list[SampledToken] = []
        self._text = ""
        self.stopped_text: str | None = None
        """Text before the stop text that ended the turn. None if no stop text has come."""
        self.times: list[float] = []
        """Monotonic time of each token."""
        self.sent = ""
        """Content that was streamed so far."""
        self._renderer, self._stops = renderer, stops
        self._sampled = asyncio.Event()
        self._decoder = DecodeStream(skip_special_tokens=False)
        self._decoded = 0
        self._taken = 0

    def __call__(self, token: SampledToken) -> bool:
        """Add a token. True ends the turn."""
        self.times.append(time.monotonic())
        self.tokens.append(token)
        if self._stops:
            self._decode()
        self._sampled.set()
        return self.stopped_text is not None

    async def wait(self) -> None:
        """Wait until a token has come since the last call."""
        await self._sampled.wait()
        self._sampled.clear()

    def _decode(self) -> None:
        """Append the text of the new tokens, without stop tokens."""
        new = self.tokens[self._decoded :]
        self._decoded += len(new)
        backend, stop_ids = self._renderer.tokenizer.backend_tokenizer, self._renderer.stop_ids
        added = "".join(self._decoder.step(backend, token.id) or "" for token in new if token.id not in stop_ids)
        searched = max(0, len(self._text) - max(map(len, self._stops), default=0))
        self._text += added
        if self.stopped_text is None:
            ends = [position for stop in self._stops if (position := self._text.find(stop, searched)) >= 0]
            self.stopped_text = self._text[: min(ends)] if ends else None

    @property
    def text(self) -> str:
        """Text of the tokens, without stop tokens."""
        if not self._stops:
            self._decode()
        return self._text

    def settled(self) -> str:
        """Text that can be sent: without an end that may become one of `stops` with the next tokens."""
        text, stopped = self.text, self.stopped_text
        if stopped is not None:
            return stopped
        held = [size for stop in self._stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
        return text[: len(text) - max(held, default=0)]

    def take(self) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of the tokens that have come since the last call."""
        first, self._taken = self._taken, len(self.tokens)
        return self._logprobs(self.tokens[first : self._taken])

    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of all tokens except the stop token, because it is not part of the reply."""
        return self._logprobs(self.tokens)

    def _logprobs(self, tokens: Sequence[SampledToken]) -> tuple[TokenLogprob, ...]:
        content = partial(token_bytes, self._renderer.tokenizer)
        return tuple(
            TokenLogprob(
                content=content(token.id),
                logprob=token.logprob,
                top=tuple((content(other), logprob) for other, logprob in token.top_logprobs),
            )
            for token in tokens
            if token.id not in self._renderer.stop_ids
        )
