"""What the user's code returns: another type, or a number that is none, fails its episode with one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.rollout import RolloutSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import EnvironmentState, StepResult
from grpo.messages import Message, ToolCall
from grpo.policy.scripted import ScriptedPolicy
from grpo.policy.tokenizer import load_tokenizer
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.trajectories import Outcome

Change = Callable[[Any], Any]


class Altered(ConversationEnvironment):
    """An environment that returns something else at one place."""

    def __init__(self, place: str, change: Change) -> None:
        super().__init__()
        self._place, self._change = place, change

    def _altered(self, place: str, value: Any) -> Any:
        return self._change(value) if place == self._place else value

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        return self._altered("reset", await super().reset(scenario, seed=seed))

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        return self._altered("step", await super().step(state, action))

    def state_digest(self, state: EnvironmentState) -> Any:
        return self._altered("state_digest", "s")

    def verify(self, state: EnvironmentState) -> Any:
        return self._altered("verify", Outcome(success=True))


class AlteredAgent(MultiTurnAgent):
    """An agent whose hook, or whose `respond`, returns something else."""

    def __init__(self, place: str, value: Any) -> None:
        super().__init__()
        self._place, self._value = place, value

    async def process_turn(self, history: Any, user_input: str, context: Any = None) -> Any:
        text = await super().process_turn(history, user_input, context)
        return self._value if self._place == "process_turn" else text

    async def respond(self, transcript: Any, messages: Any, context: Any = None) -> Any:
        reply = await super().respond(transcript, messages, context)
        return self._value if self._place == "respond" else reply


def _error(tiny_folder: Path, world: ConversationEnvironment, agent: MultiTurnAgent | None = None) -> str | None:
    [trajectory] = collect(
        [Scenario(id="s", user_responses=("hello", "bye"))],
        ScriptedPolicy(["ok"]),
        world,
        Renderer(load_tokenizer(tiny_folder)),
        RolloutSettings(error_budget=1),
        group_size=1,
        temperature=0.7,
        run_seed=3,
        iteration=2,
        agent=agent,
    )
    assert (trajectory.stop == "failed") == (trajectory.error is not None)
    return trajectory.error


def _changed(**fields: Any) -> Change:
    return lambda value: replace(value, **fields)


def _message(**fields: Any) -> Message:
    return Message(role="user", content="hello", **fields)


def _call(argument: Any) -> ToolCall:
    return ToolCall(name="f", arguments={"a": argument})


@pytest.mark.parametrize(
    ("place", "change", "reason"),
    [
        ("reset", lambda state: None, "what reset returned is None. Return a value of type EnvironmentState"),
        ("reset", _changed(turn_count=None), "a state's turn_count is None"),
        ("reset", _changed(history=("hello",)), "a state's history is a value of type str"),
        ("reset", _changed(context=b"x"), "a text is a value of type bytes"),
        ("step", lambda result: (result.state, None), "what step returned is a value of type tuple"),
        ("step", _changed(state={}), "a step's state is a value of type dict"),
        ("step", _changed(response="hello"), "a step's response is a value of type str"),
        ("step", _changed(response=Message(role="user", content=3)), "a text is 3"),  # type: ignore[arg-type]
        ("step", _changed(reward=float("nan")), "the reward of a step is nan. Return a finite number, or None"),
        ("step", _changed(reward=float("inf")), "the reward of a step is inf. Return a finite number, or None"),
        ("step", _changed(reward="0.5"), "the reward of a step is a text"),
        ("step", _changed(reward=[1]), "TypeError: float() argument must be"),
        ("verify", lambda outcome: True, "the outcome is True. Return a value of type Outcome"),
        ("verify", _changed(success="yes"), "the success of an outcome is a value of type str"),
        ("verify", _changed(checks=["a"]), "the checks of an outcome is a value of type list"),
        ("verify", _changed(checks={"a": None}), "the check a is None"),
        ("verify", _changed(reward=float("nan")), "the environment's reward is nan"),
        ("verify", _changed(state=[1]), "dict"),
        ("verify", _changed(checks={"\ud83d": True}), "surrogates not allowed"),
        ("verify", lambda outcome: Outcome.of({}, unjudged=(3,)), "a text is 3"),  # type: ignore[arg-type]
        ("state_digest", lambda digest: 5, "what state_digest returned is 5. Return a value of type str"),
        ("state_digest", lambda digest: "\ud83d", "surrogates not allowed"),
        ("step", _changed(response=_message(malformed=5)), "a part of a step's response is 5"),
        ("step", _changed(response=_message(tool_calls=("f",))), "a call of a step's response is a value of type str"),
        ("step", _changed(response=_message(tool_calls=(_call(object()),))), "NotStrictJSON: not a value of JSON"),
        ("reset", _changed(history=(_message(reasoning=b"x"),)), "a part of a state's history is a value of type byt"),
    ],
)
def test_an_environment_that_returns_something_else_fails_its_episode(
    tiny_folder: Path, place: str, change: Change, reason: str
):
    """The reason names what was returned and what to return; the run goes on."""
    assert reason in str(_error(tiny_folder, Altered(place, change)))


@pytest.mark.parametrize("value", [None, 0, b"ok", ("ok",)])
@pytest.mark.parametrize("place", ["process_turn", "respond"])
def test_an_agent_that_returns_something_else_fails_its_episode(tiny_folder: Path, place: str, value: Any):
    """A hook returns a text, and `respond` a reply."""
    error = str(_error(tiny_folder, ConversationEnvironment(), AlteredAgent(place, value)))
    assert error.startswith("the agent raised TypeError: ")
    assert ". Return " in error


def test_what_has_the_right_type_passes(tiny_folder: Path):
    """The same classes without a change."""
    assert _error(tiny_folder, Altered("", lambda value: value), AlteredAgent("", None)) is None
