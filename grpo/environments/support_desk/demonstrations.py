"""Demonstration policy of mixed quality for the pretraining (SFT) of the base model.

The policy always uses the right format, mostly follows the rules, and has bad habits: it invents order numbers instead
of asking, acts before the look-up, and claims actions that it did not take. Each constant below is the probability of
the right decision at that point. GRPO unlearns habits fast; a rule that demonstrations hardly show needs exploration.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterable, Iterator
from typing import Any

from grpo.environments.environment import EnvironmentState
from grpo.environments.support_desk.desk import SYSTEM_PROMPT, SupportDesk
from grpo.messages import Message, ToolCall
from grpo.scenarios.scenario import Scenario

ASKS_FOR_MISSING_NUMBER = 0.4
LOOKS_UP_FIRST = 0.75
ASKS_AFTER_UNKNOWN_ORDER = 0.45
RIGHT_WHEN_RULE_FAVOURS_CUSTOMER = 0.95
RIGHT_WHEN_RULE_DOES_NOT = 0.93
REPORTS_TRULY = 0.75

_NUMBER = re.compile(r"\b\d{4}\b")
_ASK = ("What is your order number?", "Could you tell me the order number?", "May I have the order number?")
_ASK_AGAIN = ("I cannot find that order. What is the right number?", "That order is unknown. What is the number?")
_REPORTS = {
    "refund": ("I have refunded your money.", "The refund is done."),
    "replace": ("A replacement is on its way.", "We send you a replacement."),
    "escalate": ("A colleague will call you.", "A colleague takes care of it."),
    "return": ("I am sorry, the thirty days are over.", "Sorry, it has been more than thirty days."),
    "missing": ("Your parcel arrives in {eta} days.", "It will be with you in {eta} days."),
    "charge": ("You were charged only once.", "It was charged once."),
}
# category → (when the rule favours the customer, when it does not): an action, or None for a reply alone
_RULE = {
    "return": ("refund", None),
    "broken": ("replace", "escalate"),
    "missing": ("refund", None),
    "charge": ("refund", None),
}


def demonstrate(scenario: Scenario, rng: random.Random) -> tuple[Message, ...]:
    """Generate the demonstration of a scenario; returns the whole conversation, system prompt first."""
    return _conversation(asyncio.run(_run_episode(SupportDesk(), scenario, rng)))


def successful_demonstrations(scenarios: Iterable[Scenario], rng: random.Random) -> Iterator[tuple[Message, ...]]:
    """Generate the demonstrations that the desk verifies as successes, one for each of those scenarios."""
    desk = SupportDesk()
    for scenario in scenarios:
        state = asyncio.run(_run_episode(desk, scenario, rng))
        if desk.verify(state).success:
            yield _conversation(state)


async def _run_episode(desk: SupportDesk, scenario: Scenario, rng: random.Random) -> EnvironmentState:
    state = await desk.reset(scenario)
    while not state.done:
        state = (await desk.step(state, _decide(state, rng))).state
    return state


def _conversation(state: EnvironmentState) -> tuple[Message, ...]:
    return (Message(role="system", content=SYSTEM_PROMPT), *state.history)


def _decide(state: EnvironmentState, rng: random.Random) -> Message:
    last = [m for m in state.history if m.role in ("user", "tool")][-1]
    if last.role == "user":
        numbers = _NUMBER.findall(last.content)
        if not numbers:
            if rng.random() < ASKS_FOR_MISSING_NUMBER:
                return _reply(rng.choice(_ASK))
            return _call("look_up", order=_guess(rng))
        if rng.random() < LOOKS_UP_FIRST:
            return _call("look_up", order=numbers[-1])
        return _call(rng.choice(("replace", "escalate")), order=numbers[-1])
    result = json.loads(last.content)
    if "error" in result:
        if rng.random() < ASKS_AFTER_UNKNOWN_ORDER:
            return _reply(rng.choice(_ASK_AGAIN))
        if rng.random() < 0.5:
            return _call("look_up", order=_guess(rng))
        return _report(rng.choice(tuple(_REPORTS)), {}, rng)
    topic = state.scenario.topic
    if "done" in result:
        reported = result["done"] if rng.random() < REPORTS_TRULY else rng.choice(tuple(_REPORTS))
        return _report(reported, {}, rng)
    return _act(topic, result, _last_order(state), rng)


def _act(topic: str, record: dict[str, Any], order: str, rng: random.Random) -> Message:
    favourable, otherwise = _RULE[topic]
    favours = {
        "return": record["days"] <= 30,
        "broken": record["price"] < 100,
        "missing": record["state"] == "lost",
        "charge": record["charges"] == 2,
    }[topic]
    share = RIGHT_WHEN_RULE_FAVOURS_CUSTOMER if favours else RIGHT_WHEN_RULE_DOES_NOT
    action = favourable if (rng.random() < share) == favours else otherwise
    if action == "refund":
        return _call("refund", order=order, amount=record["price"])
    if action is not None:
        return _call(action, order=order)
    return _report(topic if rng.random() < REPORTS_TRULY else rng.choice(tuple(_REPORTS)), record, rng)


def _report(topic: str, record: dict[str, Any], rng: random.Random) -> Message:
    return _reply(rng.choice(_REPORTS[topic]).format(eta=record.get("eta", rng.randint(2, 9))))


def _last_order(state: EnvironmentState) -> str:
    calls = [call for m in state.history for call in m.tool_calls]
    return str(calls[-1].arguments["order"])


def _guess(rng: random.Random) -> str:
    return str(rng.randint(1000, 9999))


def _reply(text: str) -> Message:
    return Message(role="assistant", content=text)


def _call(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", content="", tool_calls=(ToolCall(name=name, arguments=arguments),))
