"""Policies behind OpenAI-compatible servers, one class per endpoint.

ChatPolicy         /v1/chat/completions   messages → a message     LLM judges, simulated users, evaluation
CompletionsPolicy  /v1/completions        token ids → token ids with log-probabilities, as vLLM's server returns them
"""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo.errors import PolicyError
from grpo.messages import Message, ToolCall
from grpo.policy.openai_answers import ChatAnswer, TextAnswer, TextChoice
from grpo.policy.openai_endpoint import OpenAIEndpoint, RequestFailed
from grpo.policy.policy import Generation, Prompt, Sampler, Sampling, SessionFactory
from grpo.renderers.argument_values import read_arguments
from grpo.renderers.chat_template import Renderer
from grpo.renderers.tool_formats import refusal
from grpo.strict_json import clean_text, encode

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_OTHER_LIMIT = "max_completion_tokens"
_TOKEN = re.compile(r"token_id:(\d+)")


class ChatPolicy:
    """Chat-completions policy: reads and returns messages, for evaluation but not for training."""

    max_context = sys.maxsize
    """Unknown, so the server itself refuses a prompt that is too long."""

    def __init__(self, endpoint: OpenAIEndpoint) -> None:
        self.endpoint = endpoint
        self.hash = endpoint.hash
        self.limit = "max_tokens"
        """Name of the limit of a reply. OpenAI's reasoning models refuse this one and take `_OTHER_LIMIT`."""

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[Sampler]:
        """See `Policy.sampler`."""
        async with self.endpoint.connect() as client:
            yield SessionFactory(partial(ChatSession, self, client, renderer))


class ChatSession:
    """One conversation and its number of turns."""

    def __init__(self, policy: ChatPolicy, client: AsyncOpenAI, renderer: Renderer) -> None:
        self._policy = policy
        self._endpoint = policy.endpoint
        self._client = client
        self._renderer = renderer
        self._turns = 0

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Session.generate`. The renderer encodes the returned message to tokens."""
        sampling.refuse_unread(f"the chat endpoint {self._endpoint.address}")
        tools = [tool.to_template() for tool in self._renderer.tools]
        request: dict[str, Any] = {
            "model": self._endpoint.model,
            "messages": to_openai_messages(prompt.messages),
            "temperature": sampling.temperature,
            "seed": sampling.turn_seed(self._turns),
        }
        if sampling.top_p < 1:
            request["top_p"] = sampling.top_p
        if sampling.top_k:  # not part of OpenAI's own protocol, so a server without it returns an error
            request["extra_body"] = {"top_k": sampling.top_k}
        if tools:
            request["tools"] = tools
        response = await self._send(request, sampling.max_new_tokens)
        self._turns += 1
        if isinstance(response.choices[0].message.content, list):
            raise RequestFailed(f"{self._endpoint.address} answered with a list of parts instead of a text")
        message = _to_message(response, self._renderer)
        ids = self._renderer.encode_reply(message, prompt.messages)
        if response.choices[0].finish_reason == "length":
            return Generation(token_ids=ids[:-1], logprobs=None, stop="length", message=message)
        return Generation(token_ids=ids, logprobs=None, stop="stop", message=message)

    async def _send(self, request: Mapping[str, Any], most_tokens: int) -> ChatAnswer:
        """Answer of the server. If it refuses the name of the limit and asks for the other one, it gets the other."""
        create = self._client.chat.completions.create
        limited: dict[str, Any] = {**request, self._policy.limit: most_tokens}
        try:
            return await self._endpoint.send(create(**limited), ChatAnswer)
        except RequestFailed as error:
            if self._policy.limit == _OTHER_LIMIT or _OTHER_LIMIT not in str(error):
                raise
        self._policy.limit = _OTHER_LIMIT
        limited = {**request, _OTHER_LIMIT: most_tokens}
        return await self._endpoint.send(create(**limited), ChatAnswer)

    def close(self) -> None:
        """No resource to release."""


class CompletionsPolicy:
    """Completions policy on a server that returns token ids and their log-probabilities.

    Its trajectories can be trained on if `policy_hash` names the weights that it serves, and if the server returns
    log-probabilities at the requested temperature. vLLM's server does so with `--logprobs-mode processed_logprobs`.
    """

    max_context = sys.maxsize
    """Unknown, so the server itself refuses a prompt that is too long."""

    def __init__(self, endpoint: OpenAIEndpoint, *, policy_hash: str | None = None) -> None:
        self.endpoint = endpoint
        self.hash = policy_hash or endpoint.hash

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[Sampler]:
        """See `Policy.sampler`."""
        async with self.endpoint.connect() as client:
            yield SessionFactory(partial(CompletionsSession, self.endpoint, client, renderer.stop_ids))


class CompletionsSession:
    """One conversation with all its tokens so far."""

    def __init__(self, endpoint: OpenAIEndpoint, client: AsyncOpenAI, stop_ids: frozenset[int]) -> None:
        self._endpoint = endpoint
        self._client = client
        self._stop_ids = stop_ids
        self._ids: list[int] = []
        self._turns = 0

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Session.generate`. Raises `PolicyError` if the response lacks token ids or log-probabilities."""
        self._ids += prompt.new_ids
        request = self._client.completions.create(
            model=self._endpoint.model,
            prompt=self._ids,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_new_tokens,
            seed=sampling.turn_seed(self._turns),
            logprobs=max(1, sampling.top_logprobs),
            extra_body={
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
                "add_special_tokens": False,
                "skip_special_tokens": False,
                "stop_token_ids": sorted(self._stop_ids),
                "top_k": sampling.top_k or -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
            },
        )
        response = await self._endpoint.send(request, TextAnswer)
        self._turns += 1
        generation = self._read(response.choices[0], top_logprobs=sampling.top_logprobs)
        self._ids += generation.token_ids
        return generation if sampling.unfiltered else replace(generation, logprobs=None)

    def fork(self, tokens: int) -> CompletionsSession:
        """See `ForkableSession.fork`."""
        session = copy(self)
        session._ids = self._ids[:tokens]
        return session

    def close(self) -> None:
        """No resource to release."""

    def _read(self, choice: TextChoice, *, top_logprobs: int) -> Generation:
        address = self._endpoint.address
        logprobs = [value for value in choice.logprobs.token_logprobs or () if value is not None]
        ids = choice.token_ids or _parse_token_ids(choice.logprobs.tokens or ())
        if not ids or len(ids) != len(logprobs):
            raise PolicyError(
                f"{address} gives no token ids and log-probabilities, so it cannot be trained on. Use it for "
                f"evaluation, by the address openai+{address}"
            )
        if choice.prompt_token_ids not in (None, self._ids):
            raise PolicyError(f"{address} read other tokens than were sent. Serve the model with its own tokenizer")
        if choice.finish_reason != "length" and ids[-1] not in self._stop_ids:
            raise PolicyError(
                f"{address} ended a turn on token {ids[-1]}, not on a stop token of the renderer, "
                f"{', '.join(map(str, sorted(self._stop_ids)))}. Serve the model with the tokenizer of its checkpoint "
                "and --generation-config vllm"
            )
        stop = "length" if choice.finish_reason == "length" else "stop"
        return Generation(
            token_ids=ids,
            logprobs=logprobs,
            stop=stop,  # type: ignore[arg-type]
            top_logprobs=self._read_top(choice, count=top_logprobs) if top_logprobs else None,
        )

    def _read_top(self, choice: TextChoice, *, count: int) -> list[tuple[tuple[int, float], ...]]:
        steps = [step or {} for step in choice.logprobs.top_logprobs or ()]
        tops = [
            _likeliest(dict(zip(_parse_token_ids(list(step)), step.values(), strict=False)), count) for step in steps
        ]
        if not tops or not all(tops):
            raise PolicyError(
                f"{self._endpoint.address} gives no likeliest tokens with their ids. Set top_logprobs to 0, or serve "
                f"the model with at least --max-logprobs {count}"
            )
        return tops


def to_openai_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Convert messages to OpenAI's format, with an id for each call and one tool message per call.

    If one result answers several calls, it is repeated for each of them. If a tool message answers no call, e.g.
    because the call was malformed, it becomes a user message.

        assistant f(), g()   tool "x"        →  calls 1.0 1.1, tool 1.0 "x", tool 1.1 "x"
    """
    converted: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for index, message in enumerate(messages):
        if message.role != "tool":
            open_calls = [f"call_{index}_{k}" for k in range(len(message.tool_calls))]
            converted.append(_to_openai_message(message, open_calls))
            continue
        last = index + 1 == len(messages) or messages[index + 1].role != "tool"
        answered = open_calls if last else open_calls[:1]
        converted += [{"role": "tool", "tool_call_id": call, "content": message.content} for call in answered]
        if not answered:
            converted.append({"role": "user", "content": message.content})
        open_calls = open_calls[len(answered) :]
    return converted


def _to_openai_message(message: Message, ids: Sequence[str]) -> dict[str, Any]:
    converted: dict[str, Any] = {"role": message.role, "content": message.content}
    if ids:
        converted["tool_calls"] = [
            {
                "id": id_,
                "type": "function",
                "function": {"name": call.name, "arguments": encode(dict(call.arguments))},
            }
            for id_, call in zip(ids, message.tool_calls, strict=True)
        ]
    return converted


def _to_message(response: ChatAnswer, renderer: Renderer) -> Message:
    """Message of a chat completion. If the server has parsed no calls, they are parsed from the text.

    A malformed call is kept in the content, as in the replies of a local model. The others become calls.
    """
    message = response.choices[0].message
    text = clean_text(message.content) if isinstance(message.content, str) else ""
    text = text or clean_text(message.refusal or "")
    calls: list[ToolCall] = []
    malformed: str | None = None
    for call in message.tool_calls or ():
        if call.type != "function" or call.function is None:
            malformed = malformed or f"not a tool call: the server's call is of type {clean_text(call.type)[:80]}"
            continue
        name = clean_text(call.function.name)
        try:
            calls.append(ToolCall(name=name, arguments=read_arguments(call.function.arguments)))
        except ValueError as error:
            wrong = f"{name}({clean_text(call.function.arguments)})"
            text += wrong
            malformed = malformed or f"not a tool call: {wrong[:80]}{refusal(error)}"
    if not calls and malformed is None:
        return renderer.parse_text(text)
    return Message(role="assistant", content=text.strip(), tool_calls=tuple(calls), malformed=malformed)


def _likeliest(logprobs: dict[int, float], count: int) -> tuple[tuple[int, float], ...]:
    """The `count` likeliest tokens, likeliest first. A server adds the sampled token, which is left out if unlikely."""
    return tuple(sorted(logprobs.items(), key=lambda item: -item[1])[:count])


def _parse_token_ids(tokens: Sequence[str]) -> list[int]:
    """Parse tokens of the form `token_id:5`. The result is empty if one of them has another form."""
    matches = [_TOKEN.fullmatch(token) for token in tokens]
    return [int(match[1]) for match in matches if match] if all(matches) else []
