"""Simulated customers of the support desk, who talk to a server through OpenAI's client.

The customer's side is the environment's own: it executes the tool calls that the server returns, answers questions by
the script, and verifies the outcome. A customer whose matter is not settled sends the rest of the script at the end.
The shop's staff corrects a part of the failed conversations.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

import openai
from openai.types.chat import ChatCompletionMessage

from grpo.environments.support_desk.demonstrations import FLAWLESS, decide
from grpo.environments.support_desk.desk import SupportDesk
from grpo.messages import Message, ToolCall
from grpo.scenario import Scenario

REVIEWED = 0.5
"""Share of failed conversations in which the staff corrects the first wrong reply."""
AT_ONCE = 8
"""Customers who talk at once."""
POLITE = 0.25
"""Share of customers whose rating does not follow the outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The reply that a turn should have been."""

    turn_id: str
    reply: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One customer: what became of the matter, and which version answered."""

    scenario: Scenario
    conversation_id: str
    version: int
    success: bool
    correction: Correction | None
    """Of the first wrong reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Reply of the server: message, ids of its calls, and where it stands."""

    message: Message
    call_ids: tuple[str, ...]
    turn_id: str
    conversation_id: str
    version: int


class Customers:
    """Customers of one server."""

    def __init__(self, client: openai.AsyncOpenAI, model: str, *, seed: int) -> None:
        self._client, self._model = client, model
        self._rng, self._staff = random.Random(seed), random.Random(seed)
        self._desk = SupportDesk()

    async def visits(self, scenarios: Iterable[Scenario]) -> AsyncIterator[Visit]:
        """Talk about all scenarios, `AT_ONCE` at once, and give feedback; in the order in which conversations end."""
        free = asyncio.Semaphore(AT_ONCE)

        async def one(scenario: Scenario) -> Visit:
            async with free:
                visit = await self.talk(scenario)
                await self._give_feedback(visit)
                return visit

        for visit in asyncio.as_completed([one(scenario) for scenario in scenarios]):
            yield await visit

    async def talk(self, scenario: Scenario) -> Visit:
        """Talk until the desk's environment ends the episode, and verify the outcome."""
        state = await self._desk.reset(scenario)
        reply = await self._send(scenario, [_user(scenario.user_responses[0])], None)
        first, wrong = reply, None
        while True:
            if wrong is None:
                right = decide(state, self._staff, FLAWLESS)
                if reply.message.tool_calls != right.tool_calls:
                    wrong = Correction(turn_id=reply.turn_id, reply=right)
            step = await self._desk.step(state, reply.message)
            state = step.state
            if step.response is None or state.done:
                break
            reply = await self._send(scenario, _answers(step.response, reply), first.conversation_id)
        rest = scenario.user_responses[state.world["lines"] :]
        if step.response is not None:  # the results of calls, and the last answer
            await self._send(scenario, _answers(step.response, reply), first.conversation_id)
        elif rest:
            await self._send(scenario, [_user(line) for line in rest], first.conversation_id)
        return Visit(
            scenario=scenario,
            conversation_id=first.conversation_id,
            version=first.version,
            success=self._desk.verify(state).success,
            correction=wrong,
        )

    async def _give_feedback(self, visit: Visit) -> None:
        rating = float(visit.success) if self._rng.random() >= POLITE else self._rng.choice((0.25, 0.5, 0.75))
        await self._post(
            conversation_id=visit.conversation_id,
            rating=rating,
            success=visit.success,
            expected=visit.scenario.expected.model_dump(mode="json"),
            world=dict(visit.scenario.world),
        )
        if not visit.success and visit.correction is not None and self._staff.random() < REVIEWED:
            correction = visit.correction
            calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in correction.reply.tool_calls]
            await self._post(
                conversation_id=visit.conversation_id,
                turn_id=correction.turn_id,
                correction={"content": "", "tool_calls": calls} if calls else correction.reply.content,
            )

    async def _post(self, **body: Any) -> None:
        await self._client.post("/feedback", body=body, cast_to=object)

    async def _send(self, scenario: Scenario, messages: list[Any], conversation_id: str | None) -> Reply:
        """Send messages; the category is that of the shop's form."""
        extra = {} if conversation_id is None else {"conversation_id": conversation_id}
        completion = await self._client.chat.completions.create(
            model=self._model,
            messages=messages,
            metadata={"category": scenario.metadata.category, "domain": scenario.domain},
            extra_body=extra,
        )
        message = completion.choices[0].message
        version, _, _ = (completion.system_fingerprint or "").removeprefix(f"{self._model}/").partition("-")
        return Reply(
            message=_message(message),
            call_ids=tuple(call.id for call in message.tool_calls or ()),
            turn_id=completion.id,
            conversation_id=(completion.model_extra or {})["conversation_id"],
            version=int(version),
        )


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _message(message: ChatCompletionMessage) -> Message:
    calls = tuple(
        ToolCall(name=call.function.name, arguments=json.loads(call.function.arguments))
        for call in message.tool_calls or ()
        if call.type == "function"
    )
    return Message(role="assistant", content=message.content or "", tool_calls=calls)


def _answers(response: Message, reply: Reply) -> list[dict[str, str]]:
    """Messages of the client: the customer's line, or the result of each call."""
    if response.role == "user":
        return [_user(response.content)]
    results = [response.content]
    if len(reply.call_ids) > 1:
        results = [json.dumps(result) for result in json.loads(response.content)]
    return [
        {"role": "tool", "tool_call_id": call, "content": result}
        for call, result in zip(reply.call_ids, results, strict=True)
    ]
