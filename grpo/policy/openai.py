"""Policies behind servers that speak OpenAI's protocol, in either of its two ways.

ChatPolicy         /v1/chat/completions   messages → a message     judges, simulated users, evaluation
CompletionsPolicy  /v1/completions        token ids → token ids with log-probabilities, as vLLM's server gives them
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from grpo.errors import PolicyError
from grpo.messages import TOOL_CALL_CLOSE, TOOL_CALL_OPEN, Message, parse_assistant
from grpo.policy.openai_endpoint import OpenAIEndpoint
from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.renderers.chat_template import Renderer

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types import CompletionChoice
    from openai.types.chat import ChatCompletion

_TOKEN = re.compile(r"token_id:(\d+)")


class ChatPolicy:
    """Reads the conversation as messages and answers with one; it can be evaluated, not trained on."""

    max_context = sys.maxsize
    """Not known here: the server itself refuses what is too long."""

    def __init__(self, server: OpenAIEndpoint) -> None:
        self.server = server
        self.hash = server.hash

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[ChatSampler]:
        """See `Policy.sampler`."""
        async with self.server.connect() as client:
            yield ChatSampler(self.server, client, renderer)


@dataclass(frozen=True, slots=True)
class ChatSampler:
    """Asks the server; it remembers nothing between turns, so every turn sends the whole conversation."""

    server: OpenAIEndpoint
    client: AsyncOpenAI
    renderer: Renderer

    def open(self) -> ChatSession:
        """See `Sampler.open`."""
        return ChatSession(self)


class ChatSession:
    """One conversation, and how many turns of it were spoken."""

    def __init__(self, sampler: ChatSampler) -> None:
        self._sampler = sampler
        self._turns = 0

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Session.generate`; the tokens are what the renderer makes of the message."""
        sampler, tools = self._sampler, [tool.to_template() for tool in self._sampler.renderer.tools]
        request: dict[str, Any] = {
            "model": sampler.server.model,
            "messages": to_openai_messages(prompt.messages),
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_new_tokens,
            "seed": sampling.turn_seed(self._turns),
        }
        if sampling.top_p < 1:
            request["top_p"] = sampling.top_p
        if sampling.top_k:  # no part of OpenAI's own protocol; servers that lack it say so
            request["extra_body"] = {"top_k": sampling.top_k}
        if tools:
            request["tools"] = tools
        answer = await sampler.server.send(sampler.client.chat.completions.create(**request), "message")
        self._turns += 1
        text = _written(answer)
        ids = sampler.renderer.encode_reply(Message(role="assistant", content=text))
        message = parse_assistant(text)
        if answer.choices[0].finish_reason == "length":
            return Generation(token_ids=ids[:-1], logprobs=None, stop="length", message=message)
        return Generation(token_ids=ids, logprobs=None, stop="stop", message=message)

    def close(self) -> None:
        """Nothing is held."""


class CompletionsPolicy:
    """Continues token ids on a server that says which tokens it drew and how likely they were.

    What it says may be trained on if `policy_hash` names the weights that it serves, and if its log-probabilities are
    those at the temperature asked for: vLLM's server gives them with `--logprobs-mode processed_logprobs`.
    """

    max_context = sys.maxsize
    """Not known here: the server itself refuses what is too long."""

    def __init__(self, server: OpenAIEndpoint, *, policy_hash: str | None = None) -> None:
        self.server = server
        self.hash = policy_hash or server.hash

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[CompletionsSampler]:
        """See `Policy.sampler`."""
        async with self.server.connect() as client:
            yield CompletionsSampler(self.server, client, renderer.stop_id)


@dataclass(frozen=True, slots=True)
class CompletionsSampler:
    """Asks the server; it keeps what it has read, where it caches prefixes."""

    server: OpenAIEndpoint
    client: AsyncOpenAI
    stop_id: int

    def open(self) -> CompletionsSession:
        """See `Sampler.open`."""
        return CompletionsSession(self)


class CompletionsSession:
    """One conversation: all tokens of it so far."""

    def __init__(self, sampler: CompletionsSampler) -> None:
        self._sampler = sampler
        self._ids: list[int] = []
        self._turns = 0

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Session.generate`. Raises `PolicyError` where the server does not give what training needs."""
        sampler = self._sampler
        self._ids += prompt.new_ids
        request = sampler.client.completions.create(
            model=sampler.server.model,
            prompt=self._ids,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_new_tokens,
            seed=sampling.turn_seed(self._turns),
            logprobs=1,
            extra_body={
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
                "add_special_tokens": False,
                "skip_special_tokens": False,
                "stop_token_ids": [sampler.stop_id],
                "top_k": sampling.top_k or -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
            },
        )
        answer = await sampler.server.send(request, "text")
        self._turns += 1
        said = self._read(answer.choices[0])
        self._ids += said.token_ids
        return said if sampling.unfiltered else replace(said, logprobs=None)

    def close(self) -> None:
        """Nothing is held."""

    def _read(self, choice: CompletionChoice) -> Generation:
        address, more = self._sampler.server.address, choice.model_extra or {}
        logprobs = choice.logprobs.token_logprobs if choice.logprobs else None
        ids = more.get("token_ids") or _ids_of((choice.logprobs and choice.logprobs.tokens) or ())
        if not ids or not logprobs or len(ids) != len(logprobs) or None in logprobs:
            raise PolicyError(
                f"{address} gives no token ids and log-probabilities, so it cannot be trained on; use it for "
                f"evaluation, by the address openai+{address}"
            )
        if more.get("prompt_token_ids") not in (None, self._ids):
            raise PolicyError(f"{address} read other tokens than were sent; serve the model with its own tokenizer")
        if choice.finish_reason != "length" and ids[-1] != self._sampler.stop_id:
            raise PolicyError(
                f"{address} ended a turn on token {ids[-1]}, not on the stop token {self._sampler.stop_id} of the "
                "renderer; serve the model with the tokenizer of its checkpoint and --generation-config vllm"
            )
        stop = "length" if choice.finish_reason == "length" else "stop"
        return Generation(token_ids=list(ids), logprobs=list(logprobs), stop=stop)  # type: ignore[arg-type]


def to_openai_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in the form of the protocol, where each call has an id and each tool message answers one.

    One answer to several calls is given to each of them; what a tool says without a call (one that could not be read)
    is said by the user.

        assistant f(), g()   tool "x"        →  calls 1.0 1.1, tool 1.0 "x", tool 1.1 "x"
    """
    wire: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for index, message in enumerate(messages):
        if message.role != "tool":
            open_calls = [f"call_{index}_{k}" for k in range(len(message.tool_calls))]
            wire.append(_say(message, open_calls))
            continue
        last = index + 1 == len(messages) or messages[index + 1].role != "tool"
        answered = open_calls if last else open_calls[:1]
        wire += [{"role": "tool", "tool_call_id": call, "content": message.content} for call in answered]
        if not answered:
            wire.append({"role": "user", "content": message.content})
        open_calls = open_calls[len(answered) :]
    return wire


def _say(message: Message, ids: Sequence[str]) -> dict[str, Any]:
    said: dict[str, Any] = {"role": message.role, "content": message.content}
    if ids:
        said["tool_calls"] = [
            {
                "id": id_,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
            }
            for id_, call in zip(ids, message.tool_calls, strict=True)
        ]
    return said


def _written(answer: ChatCompletion) -> str:
    """The answer as the policy itself would write it, calls included."""
    message = answer.choices[0].message
    calls = [
        f'{TOOL_CALL_OPEN}{{"name": {json.dumps(call.function.name)}, "arguments": {call.function.arguments or "{}"}}}'
        f"{TOOL_CALL_CLOSE}"
        for call in message.tool_calls or ()
        if call.type == "function"
    ]
    return (message.content or "") + "".join(calls)


def _ids_of(tokens: Sequence[str]) -> list[int]:
    """Ids from tokens of the form `token_id:5`; empty when one of them has another form."""
    found = [_TOKEN.fullmatch(token) for token in tokens]
    return [int(match[1]) for match in found if match] if all(found) else []
