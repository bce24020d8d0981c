"""Bodies of OpenAI's chat API: a whole completion, and the chunks of a stream, which add up to the same message."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from grpo.messages import Message
from grpo.strict_json import encode

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """Sampled token with its log-probability and the likeliest alternatives."""

    content: bytes
    """A token may have a part of a character."""
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """OpenAI's form."""
        top = [_token(content, value) for content, value in self.top]
        return {**_token(self.content, self.logprob), "top_logprobs": top}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Number of tokens of one choice, or of all choices."""

    prompt: int
    completion: int
    cached: int = 0
    """Prompt tokens that were not read again."""

    @classmethod
    def total(cls, parts: Iterable[Usage]) -> Self:
        """Tokens of all choices. The prompt counts once, because they share it."""
        usages = list(parts)
        return cls(
            prompt=max((usage.prompt for usage in usages), default=0),
            completion=sum(usage.completion for usage in usages),
            cached=max((usage.cached for usage in usages), default=0),
        )

    def to_json(self) -> dict[str, Any]:
        """OpenAI's form."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Finished reply."""

    index: int
    message: Message
    finish_reason: FinishReason
    turn_id: str
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Fields that the chunks and the whole body of one response share."""

    id: str
    created: int
    model: str
    conversation_id: str
    fingerprint: str
    """Version and digest of the weights."""

    def body(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """Body of a response that is not streamed."""
        return {
            **self._head("chat.completion"),
            "choices": [
                {
                    "index": choice.index,
                    "message": _message(choice),
                    "finish_reason": choice.finish_reason,
                    "logprobs": _logprobs(choice.logprobs),
                }
                for choice in choices
            ],
            "usage": usage.to_json(),
        }

    def chunk(
        self,
        index: int,
        delta: Mapping[str, Any],
        *,
        finish_reason: FinishReason | None = None,
        logprobs: Sequence[TokenLogprob] | None = None,
    ) -> dict[str, Any]:
        """Chunk of one choice."""
        choice = {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": _logprobs(logprobs)}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def last_chunks(
        self, choice: Choice, sent: str, logprobs: Sequence[TokenLogprob] | None
    ) -> Iterable[dict[str, Any]]:
        """Chunks after `sent` was streamed: the rest of the content, each call as a whole, and the finish reason."""
        rest = choice.message.content[len(sent) :]
        if rest or logprobs:
            yield self.chunk(choice.index, {"content": rest}, logprobs=logprobs)
        for position, call in enumerate(tool_calls(choice)):
            yield self.chunk(choice.index, {"tool_calls": [{"index": position, **call}]})
        yield self.chunk(choice.index, {}, finish_reason=choice.finish_reason)

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """Last chunk of a stream with `include_usage`."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage.to_json()}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "conversation_id": self.conversation_id,
        }


def tool_calls(choice: Choice) -> list[dict[str, Any]]:
    """Tool calls of a reply. The id of each is made of its turn and position."""
    return [
        {
            "id": call_id(choice.turn_id, position),
            "type": "function",
            "function": {"name": call.name, "arguments": encode(dict(call.arguments))},
        }
        for position, call in enumerate(choice.message.tool_calls)
    ]


def call_id(turn_id: str, position: int) -> str:
    """Id of a tool call in the reply of a turn."""
    return f"{_CALL}{turn_id}_{position}"


def turn_of_call(call: str) -> str | None:
    """Id of the turn whose reply has the call with this id. None for the id of another server."""
    turn_id, _, position = call.removeprefix(_CALL).rpartition("_")
    return turn_id if call.startswith(_CALL) and turn_id and position.isdecimal() else None


def json_text(data: Mapping[str, Any] | str) -> str:
    """JSON of an object. A text is returned unchanged."""
    return (
        data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    )


def event(data: Mapping[str, Any] | str) -> bytes:
    """Server-sent event."""
    return f"data: {json_text(data)}\n\n".encode()


_CALL = "call_"
_IMPOSSIBLE = -9999.0
DONE = "[DONE]"
"""Last event of a stream that did not fail."""


def _token(content: bytes, logprob: float) -> dict[str, Any]:
    return {"token": content.decode(errors="replace"), "logprob": _finite(logprob), "bytes": list(content)}


def _finite(logprob: float) -> float:
    """Log-probability, or OpenAI's value for an impossible token if it is -infinity, because JSON has no infinity."""
    return max(logprob, _IMPOSSIBLE)


def _message(choice: Choice) -> dict[str, Any]:
    content = choice.message.content
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content if content or not choice.message.tool_calls else None,
        "refusal": None,
    }
    if choice.message.reasoning is not None:
        message["reasoning_content"] = choice.message.reasoning
    if calls := tool_calls(choice):
        message["tool_calls"] = calls
    return message


def _logprobs(tokens: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
    return None if tokens is None else {"content": [token.to_json() for token in tokens], "refusal": None}
