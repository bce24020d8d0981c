"""Demonstration policy of mixed quality for the pretraining (SFT) of the base model.

The policy always uses the right format, mostly follows the rules, and has bad habits: it invents order numbers instead
of asking, acts before the look-up, and claims actions that it did not take. GRPO unlearns habits fast, but if
demonstrations hardly show a rule, learning it needs exploration.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from grpo.environments.environment import EnvironmentState
from grpo.environments.support_desk.desk import SYSTEM_PROMPT, SupportDesk
from grpo.messages import Message, ToolCall
from grpo.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Probabilities of the right decision at each point."""

    asks_for_missing_number: float = 0.4
    looks_up_first: float = 0.75
    asks_after_unknown_order: float = 0.45
    right_when_rule_favours_customer: float = 0.95
    right_when_rule_does_not: float = 0.93
    reports_truly: float = 0.75


PRETRAINING = Habits()
FLAWLESS = Habits(
    asks_for_missing_number=1.0,
    looks_up_first=1.0,
    asks_after_unknown_order=1.0,
    right_when_rule_favours_customer=1.0,
    right_when_rule_does_not=1.0,
    reports_truly=1.0,
)

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
# category → (when the rule favours the customer, when it does not): an action, or None for only a reply
_RULE = {
    "return": ("refund", None),
    "broken": ("replace", "escalate"),
    "missing": ("refund", None),
    "charge": ("refund", None),
}


def demonstrate(scenario: Scenario, rng: random.Random) -> tuple[Message, ...]:
    """Generate the demonstration of a scenario. Returns the whole conversation, system prompt first."""
    return _conversation(asyncio.run(_run_episode(SupportDesk(), scenario, rng)))


def successful_demonstrations(scenarios: Iterable[Scenario], rng: random.Random) -> Iterator[tuple[Message, ...]]:
    """Generate the demonstrations that the desk verifies as successes, up to one per scenario."""
    desk = SupportDesk()
    for scenario in scenarios:
        state = asyncio.run(_run_episode(desk, scenario, rng))
        if desk.verify(state).success:
            yield _conversation(state)


async def _run_episode(desk: SupportDesk, scenario: Scenario, rng: random.Random) -> EnvironmentState:
    state = await desk.reset(scenario)
    while not state.done:
        state = (await desk.step(state, decide(state, rng))).state
    return state


def _conversation(state: EnvironmentState) -> tuple[Message, ...]:
    return (Message(role="system", content=SYSTEM_PROMPT), *state.history)


def decide(state: EnvironmentState, rng: random.Random, habits: Habits = PRETRAINING) -> Message:
    """The agent's next message in this state."""
    last = [m for m in state.history if m.role in ("user", "tool")][-1]
    if last.role == "user":
        numbers = _NUMBER.findall(last.content)
        if not numbers:
            if rng.random() < habits.asks_for_missing_number:
                return _reply(rng.choice(_ASK))
            return _call("look_up", order=_guess(rng))
        if rng.random() < habits.looks_up_first:
            return _call("look_up", order=numbers[-1])
        return _call(rng.choice(("replace", "escalate")), order=numbers[-1])
    result = json.loads(last.content)
    if "error" in result:
        if rng.random() < habits.asks_after_unknown_order:
            return _reply(rng.choice(_ASK_AGAIN))
        if rng.random() < 0.5:
            return _call("look_up", order=_guess(rng))
        return _report(rng.choice(tuple(_REPORTS)), {}, rng)
    topic = state.scenario.topic
    if "done" in result:
        reported = result["done"] if rng.random() < habits.reports_truly else rng.choice(tuple(_REPORTS))
        return _report(reported, {}, rng)
    return _act(topic, result, _last_order(state), rng, habits)


def _act(topic: str, record: dict[str, Any], order: str, rng: random.Random, habits: Habits) -> Message:
    favourable, otherwise = _RULE[topic]
    favours = {
        "return": record["days"] <= 30,
        "broken": record["price"] < 100,
        "missing": record["state"] == "lost",
        "charge": record["charges"] == 2,
    }[topic]
    share = habits.right_when_rule_favours_customer if favours else habits.right_when_rule_does_not
    action = favourable if (rng.random() < share) == favours else otherwise
    if action == "refund":
        return _call("refund", order=order, amount=record["price"])
    if action is not None:
        return _call(action, order=order)
    return _report(topic if rng.random() < habits.reports_truly else rng.choice(tuple(_REPORTS)), record, rng)


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
