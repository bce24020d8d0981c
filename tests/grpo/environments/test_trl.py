"""Environments in the form of TRL's `environment_factory`: the shapes of TRL's own examples."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from grpo.config.environments import TRLEnvironmentSettings
from grpo.environments.catalog import make_environment
from grpo.environments.environment import Environment
from grpo.errors import ConfigError, DataError
from grpo.messages import Message, ToolCall
from grpo.scenario import Scenario
from grpo.trajectories import Outcome

WORDLE = '''
class WordleEnv:
    limit = 6

    def __init__(self, penalty: float = 0.0):
        self.client = object()
        self.penalty = penalty

    @property
    def broken(self):
        raise RuntimeError("properties are not evaluated")

    def reset(self, **kwargs) -> str | None:
        self.secret = kwargs["secret"]
        self.prompt = kwargs["prompt"]
        self.reward = 0.0
        self.done = False
        return " Guess now."

    def guess(self, word: str) -> str:
        """
        Make a guess.

        Args:
            word: The guessed word.

        Returns:
            The feedback.
        """
        if self.done:
            raise ValueError("Game over.")
        self.done = word == self.secret
        self.reward = 1.0 if self.done else -self.penalty
        return "".join("G" if a == b else "X" for a, b in zip(word, self.secret))

class Owning(WordleEnv):
    async def get_reward(self) -> float:
        return self.reward

    async def hint(self) -> str:
        """Ask for the first letter."""
        return self.secret[0]

class Infinite(WordleEnv):
    def get_reward(self):
        return float("nan")

class Bare:
    def guess(self, word: str) -> str:
        """Guess."""

class Undescribed(WordleEnv):
    def move(self, direction):
        return ""

class Pictures(WordleEnv):
    def reset(self, **kwargs):
        return [{"type": "image"}]
'''
SCENARIO = Scenario(id="w", user_responses=("A word of five letters.",), world={"secret": "crane"})


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's module."""
    (tmp_path / "trl_wordle.py").write_text(WORDLE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trl_wordle", raising=False)


def environment(name: str, **settings: object) -> Environment:
    return make_environment(
        TRLEnvironmentSettings.model_validate({"kind": "trl", "object": f"trl_wordle:{name}", **settings})
    )


def play(world: Environment, *calls: ToolCall | str) -> tuple[list[str], Outcome | None]:
    """Results of calls and replies in one episode, and its outcome."""

    async def run() -> tuple[list[str], Outcome | None]:
        await world.check(SCENARIO)
        state = await world.reset(SCENARIO, seed=0)
        contents = [state.history[0].content]
        for call in calls:
            text = call if isinstance(call, str) else ""
            made = () if isinstance(call, str) else (call,)
            result = await world.step(state, Message(role="assistant", content=text, tool_calls=made))
            state = result.state
            ending = "terminated" if result.terminated else "truncated" if result.truncated else ""
            contents.append(ending or (result.response.content if result.response else ""))
        return contents, await world.conclude(state)

    return asyncio.run(run())


def guess(word: str) -> ToolCall:
    return ToolCall(name="guess", arguments={"word": word})


def test_a_class_of_trl_is_played_by_its_tools():
    """Reset's text follows the prompt, results and exceptions are shown as TRL shows them, a plain reply ends it."""
    world = environment("WordleEnv", options={"penalty": 0.5})
    [tool] = world.tools
    assert (tool.name, tool.description) == ("guess", "Make a guess.")
    assert tool.parameters["properties"] == {"word": {"type": "string", "description": "The guessed word."}}
    contents, outcome = play(world, guess("crate"), guess("crane"), guess("slate"), "Done.")
    assert contents == [
        "A word of five letters. Guess now.", "GGGXG", "GGGGG", "{'error': 'Game over.'}", "terminated"
    ]  # fmt: skip
    assert outcome is not None
    assert (outcome.success, outcome.reward) == (None, None)
    assert outcome.state["attributes"]["reward"] == 1.0
    assert outcome.state["unsaved"] == {"client": "object"}


def test_each_episode_has_an_instance_of_its_own():
    """An episode does not see the one before."""
    world = environment("WordleEnv")
    assert play(world, guess("crane"))[1].state["attributes"]["done"] is True  # type: ignore[union-attr]
    assert play(world)[1].state["attributes"]["done"] is False  # type: ignore[union-attr]


def test_get_reward_is_the_reward_of_the_environment():
    """Awaited where it is async; from success_reward on, the episode is a success. Async tools are awaited."""
    world = environment("Owning", success_reward=1.0)
    assert {tool.name for tool in world.tools} == {"guess", "hint"}
    contents, outcome = play(world, ToolCall(name="hint", arguments={}), guess("crane"))
    assert contents[1:] == ["c", "GGGGG"]
    assert (outcome.reward, outcome.success) == (1.0, True)  # type: ignore[union-attr]
    assert play(world, guess("slate"))[1].success is False  # type: ignore[union-attr]
    with pytest.raises(DataError, match=r"Infinite\.get_reward returned nan\. Return a finite number"):
        play(environment("Infinite"))


def test_an_episode_is_cut_off_at_max_turns():
    """Tool calls count as turns."""
    assert play(environment("WordleEnv", max_turns=2), guess("slate"), guess("slate"))[0][-1] == "truncated"


def test_wrong_calls_are_results():
    """An unknown tool, `reset`, and wrong arguments."""
    calls = (ToolCall(name="reset", arguments={}), ToolCall(name="guess", arguments={"wrod": "x"}))
    contents, _ = play(environment("WordleEnv"), *calls)
    assert contents[1] == "{'error': 'Tool reset not found.'}"
    assert "unexpected keyword argument 'wrod'" in contents[2]


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("Bare", {}, "Bare has no method reset"),
        ("Undescribed", {}, r"method move of Undescribed is a tool.*Give each argument a type"),
        ("WordleEnv", {"options": {"penlty": 1}}, "trl_wordle:WordleEnv has no option 'penlty'. It takes penalty"),
        (
            "WordleEnv",
            {"success_reward": 1},
            "success_reward 1.0 is compared with the result of get_reward, but WordleEnv has no such",
        ),
        ("Missing", {}, "module trl_wordle has no Missing"),
    ],
)
def test_another_class_is_refused(name: str, settings: dict[str, object], reason: str):
    """Before a run, with the remedy."""
    with pytest.raises(ConfigError, match=reason):
        environment(name, **settings)


def test_pictures_and_answering_users_are_refused():
    """One text opens an episode."""
    with pytest.raises(DataError, match=r"Pictures\.reset returned list"):
        play(environment("Pictures"))
    several = Scenario(id="s", user_responses=("a", "b"))
    with pytest.raises(DataError, match=r"scenario s has 2 user turns\. Environment WordleEnv has one"):
        asyncio.run(environment("WordleEnv").check(several))
