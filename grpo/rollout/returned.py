"""Checks of what an environment or an agent returns in an episode, before the episode uses or stores it.

Environments and agents are code of the user, so a value may have the wrong type, or parts that cannot be stored in a
table of trajectories. `run_episode` checks each value as soon as it has it. The error then names the value, and only
this episode fails. Without these checks the stage would fail later, when it writes the table, and could not say which
code returned the value. What rewards return is checked in `grpo.rewards.returned`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import NoneType

import numpy as np

from grpo.messages import Message, ToolCall
from grpo.strict_json import encode
from grpo.trajectories import Outcome
from grpo.user_failures import shown


def check_type(value: object, kind: type | tuple[type, ...], what: str) -> None:
    """Raise `TypeError` if the user's code returned a value of another type as `what`."""
    if not isinstance(value, kind):
        expected = (kind[0] if isinstance(kind, tuple) else kind).__name__
        raise TypeError(f"{what} is {shown(value)}. Return a value of type {expected}")


def check_message(message: Message, what: str) -> None:
    """Raise `TypeError`, `UnicodeEncodeError` or `NotStrictJSON` if a message or a part of it cannot be stored."""
    check_type(message, Message, what)
    check_texts(message.content)
    for part in (message.malformed, message.reasoning):
        check_optional_text(part, f"a part of {what}")
    for call in message.tool_calls:
        check_type(call, ToolCall, f"a call of {what}")
        check_texts(call.name)
        encode(dict(call.arguments))


def check_outcome(outcome: Outcome) -> None:
    """Raise `TypeError`, `UnicodeEncodeError` or `NotStrictJSON` if a part of an outcome cannot be stored."""
    check_type(outcome, Outcome, "the outcome")
    check_type(outcome.checks, Mapping, "the checks of an outcome")
    if outcome.success is not None:
        check_type(outcome.success, (bool, np.bool_), "the success of an outcome")
    check_texts(*outcome.checks, *outcome.unjudged)
    for name, value in outcome.checks.items():
        check_type(value, (bool, np.bool_), f"the check {name}")
    if outcome.reward is not None:
        finite_reward(outcome.reward)
    encode(dict(outcome.state))


def finite_reward(reward: object) -> float:
    """Convert the reward of a step to a float. Raises `TypeError` or `ValueError` if nothing can be learned from it."""
    if isinstance(reward, (str, bytes)):
        raise TypeError("the reward of a step is a text. Return a finite number, or None")
    number = float(reward)  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise ValueError(f"the reward of a step is {number}. Return a finite number, or None")
    return number


def check_texts(*texts: str) -> None:
    """Raise `UnicodeEncodeError` for a text that has half of a surrogate pair, which no tokenizer reads."""
    for text in texts:
        check_type(text, str, "a text")
        text.encode()


def check_optional_text(text: str | None, what: str) -> None:
    """Raise `TypeError` or `UnicodeEncodeError` unless `what` is None or a text that a tokenizer reads."""
    check_type(text, (str, NoneType), what)
    check_texts(text or "")
