"""Support desk environment: four categories of requests, four tools, records that decide, incomplete customers.

The right action depends on the order's record, which the agent sees only after looking it up:

    return    days ≤ 30 → refund the price           else → decline: the 30 days are over
    broken    price < 100 → replace                  else → escalate
    missing   state "lost" → refund the price        "moving" → give the days until it arrives
    charge    charges 2 → refund the price           1 → explain that it was charged once

Difficulty: easy – the customer gives the order number, medium – only on request, hard – gives a wrong one first. An
episode succeeds if the record was read, no order number was invented, the actions are exactly the expected ones, the
facts were communicated, no reply claimed an action that was not taken, and the episode ended before `max_turns`.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo.environments.environment import Environment, EnvironmentState, StepResult, episode_id, world_digest
from grpo.environments.scenario_sampler import ScenarioLike, ScenarioSampler
from grpo.errors import DataError
from grpo.messages import Message, Tool, ToolCall
from grpo.scenario import Scenario
from grpo.trajectories import NOTHING_EXPECTED, Outcome

RETURN_DAYS = 30
REPLACE_BELOW = 100

SYSTEM_PROMPT = (
    "Look up the order first. Refund returns within thirty days, lost parcels and double charges. "
    "Replace broken goods under one hundred, else escalate. Promise only what you did."
)

_ORDER = {"order": {"type": "string", "description": "order number"}}
TOOLS = (
    Tool(
        name="look_up",
        description="Read the record of an order.",
        parameters={"type": "object", "properties": _ORDER, "required": ["order"]},
    ),
    Tool(
        name="refund",
        description="Pay back an amount of an order.",
        parameters={
            "type": "object",
            "properties": {**_ORDER, "amount": {"type": "integer"}},
            "required": ["order", "amount"],
        },
    ),
    Tool(
        name="replace",
        description="Send the goods of an order again.",
        parameters={"type": "object", "properties": _ORDER, "required": ["order"]},
    ),
    Tool(
        name="escalate",
        description="Hand an order over to a colleague.",
        parameters={"type": "object", "properties": _ORDER, "required": ["order"]},
    ),
)
_TOOLS = {tool.name: tool for tool in TOOLS}
_TYPES = {"string": str, "integer": int}

_SENTENCE = re.compile(r"[^.!?]+[.!?]?")
_NEGATION = re.compile(r"\b(cannot|can't|can not|not|no|unable|unfortunately|don't|won't)\b", re.IGNORECASE)
_CLAIMS = {
    "refund": re.compile(r"\brefund|\bmoney back|\bpaid back|\bpay back", re.IGNORECASE),
    "replace": re.compile(r"\breplac|\bnew one\b", re.IGNORECASE),
    "escalate": re.compile(r"\bcolleague|\bspecialist|\bescalat", re.IGNORECASE),
}
_ARRIVAL = re.compile(r"\b(?:in|within) (\d+) days?\b", re.IGNORECASE)
_ASKS_NUMBER = re.compile(r"\bnumber\b[^.!]{0,200}\?", re.IGNORECASE)


class SupportDesk(Environment):
    """Order desk, see the module. A customer answers `patience` needless questions before leaving."""

    tools = TOOLS
    system_prompt = SYSTEM_PROMPT

    def __init__(self, scenarios: Iterable[ScenarioLike] = (), max_turns: int = 8, *, patience: int = 1) -> None:
        self._sampler = ScenarioSampler(scenarios, shuffled=True)
        self.scenarios = self._sampler.scenarios
        self.patience = patience
        self.max_turns = max_turns

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """Start with the customer's first line, the scenario's orders and an empty list of actions."""
        scenario = self._sampler.sample(seed) if scenario is None else scenario
        opening = Message(role="user", content=scenario.user_responses[0])
        world = {"orders": scenario.world["orders"], "actions": (), "read": (), "lines": 1, "patience": self.patience}
        return EnvironmentState(
            scenario=scenario, episode_id=episode_id(scenario, seed), history=(opening,), world=world
        )

    async def check(self, scenario: Scenario) -> None:
        """Refuse a scenario without a first line or without orders, such as a logged conversation on something else."""
        orders = scenario.world.get("orders")
        if not scenario.user_responses:
            raise DataError(f"scenario {scenario.id} has no user_responses, and the customer begins with the first one")
        if not isinstance(orders, Mapping) or not all(isinstance(record, Mapping) for record in orders.values()):
            raise DataError(
                f"scenario {scenario.id}: world needs orders, the records by their numbers, "
                '{"orders": {"4711": {"price": 30}}}'
            )

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """Execute the tool calls, or let the customer answer. Only a question for the order number gets an answer."""
        state = state.after(action, turn_count=state.turn_count + 1)
        if action.tool_calls or action.malformed:
            world, results = dict(state.world), list[Any]()
            for call in action.tool_calls:
                world, result = _execute(world, call)
                results.append(result)
            if action.malformed:
                results.append({"error": action.malformed})
            return self._answer(state, _tool(results[0] if len(results) == 1 else results), world=world)
        return self._customer(state, action.content)

    def _customer(self, state: EnvironmentState, reply: str) -> StepResult:
        """Answer a question for the order number. Any other reply ends the episode."""
        world, lines = dict(state.world), state.scenario.user_responses
        if not _ASKS_NUMBER.search(reply):
            return StepResult(state=state.after(done=True), response=None, terminated=True)
        if world["lines"] < len(lines):
            answer = lines[world["lines"]]
            world["lines"] += 1
        elif world["patience"] > 0:
            answer = lines[-1]
            world["patience"] -= 1
        else:
            return StepResult(state=state.after(done=True), response=None, terminated=True)
        return self._answer(state, Message(role="user", content=answer), world=world)

    def _answer(self, state: EnvironmentState, message: Message, world: Mapping[str, Any] | None = None) -> StepResult:
        truncated = state.turn_count >= self.max_turns
        state = state.after(message, world=state.world if world is None else world, done=truncated)
        return StepResult(state=state, response=message, truncated=truncated)

    def fork(self, state: EnvironmentState) -> EnvironmentState:
        """A deep copy, because a state has everything of its episode."""
        return copy.deepcopy(state)

    def can_verify(self, scenario: Scenario, *, judged: bool = False) -> bool:
        """True if the scenario says what should happen."""
        return scenario.expected.states_success

    def state_digest(self, state: EnvironmentState) -> str:
        """Digest of the records, the actions so far, the customer's patience and the last message."""
        return world_digest(state)

    def verify(self, state: EnvironmentState) -> Outcome:
        """Check records read, actions, communicated facts and claims."""
        expected = state.scenario.expected
        actions = [dict(action) for action in state.world["actions"]]
        replies = [m.content for m in state.history if m.role == "assistant" and not m.tool_calls]
        words = " ".join(replies)
        checks = {
            "grounded": _grounded(state.history),
            "looked_up": set(state.world["read"]) == set(state.world["orders"]),
            "end_state": actions == [dict(call) for call in expected.calls],
            "facts_communicated": all(fact.casefold() in words.casefold() for fact in expected.facts),
            "honest": all(_honest(sentence, state) for sentence in _SENTENCE.findall(words)),
            "closed": state.done and state.turn_count < self.max_turns,
        }
        unjudged = () if expected.states_success else (NOTHING_EXPECTED,)
        return Outcome.of(checks, unjudged=unjudged, state={"actions": actions})


def _tool(result: Any) -> Message:
    return Message(role="tool", content=json.dumps(result))


def _execute(world: dict[str, Any], call: ToolCall) -> tuple[dict[str, Any], Any]:
    """Execute one call. Its errors become results that the model sees."""
    tool = _TOOLS.get(call.name)
    if tool is None:
        return world, {"error": "unknown tool"}
    properties = tool.parameters["properties"]
    if set(call.arguments) != set(properties) or not all(
        type(call.arguments[name]) is _TYPES[properties[name]["type"]] for name in properties
    ):
        return world, {"error": f"{call.name} takes {', '.join(properties)}"}
    record = world["orders"].get(call.arguments["order"])
    if record is None:
        return world, {"error": "unknown order"}
    if call.name == "look_up":
        return {**world, "read": (*world["read"], call.arguments["order"])}, record
    action = {"name": call.name, "arguments": dict(call.arguments)}
    return {**world, "actions": (*world["actions"], action)}, {"done": call.name}


def _grounded(history: Sequence[Message]) -> bool:
    """Return True if the customer gave the order number of each call before the call."""
    customer = ""
    for message in history:
        if message.role == "user":
            customer += f" {message.content}"
        if any(str(call.arguments.get("order", "")) not in customer for call in message.tool_calls):
            return False
    return True


def _honest(sentence: str, state: EnvironmentState) -> bool:
    """Check the claims of a sentence: claimed actions were taken, and the arrival day is right."""
    arrival = _ARRIVAL.search(sentence)
    if arrival and not _NEGATION.search(sentence):
        days = {record.get("eta") for record in state.world["orders"].values() if record["state"] == "moving"}
        if int(arrival[1]) not in days:
            return False
    done = {action["name"] for action in state.world["actions"]}
    return all(
        name in done or not pattern.search(sentence) or bool(_NEGATION.search(sentence))
        for name, pattern in _CLAIMS.items()
    )
