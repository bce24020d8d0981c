"""Classes in the form of Gymnasium, Gym and OpenEnv's clients."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from grpo.config.environments import GymEnvironmentSettings, PythonEnvironmentSettings
from grpo.environments.catalog import make_environment
from grpo.environments.environment import Environment
from grpo.environments.gym import GymEnvironment
from grpo.errors import ConfigError, DataError, OutcomeError
from grpo.messages import Message
from grpo.scenario import Scenario
from grpo.trajectories import Outcome

CODE = '''
from dataclasses import dataclass

class Five:
    """Ends when the agent says the word; half a point for each step."""
    def reset(self, *, seed=None, options=None):
        self.word, self.seed, self.closed = options["word"], seed, False
        return f"Say a word. {seed}", {}
    def step(self, action):
        solved = action == self.word
        return f"Not {action}.", 0.5, solved, False, {"is_success": solved}
    def close(self):
        self.closed = True

class Four:
    def reset(self, word):
        self.word = word
        return "Say a word."
    def step(self, action):
        return f"Not {action}.", 0.5, action == self.word, {}

class Asynchronous(Four):
    async def reset(self, word):
        return super().reset(word)
    async def step(self, action):
        return super().step(action)

@dataclass
class Say:
    message: str
    loud: bool = False

@dataclass
class Seen:
    text: str

@dataclass
class Result:
    observation: Seen
    reward: float | None
    done: bool

class Client:
    """As OpenEnv's clients."""
    def reset(self):
        return Result(Seen("Say a word."), None, False)
    def step(self, action: Say):
        return Result(Seen(f"Not {action.message}."), 0.5, action.message == "lamp")

class Numbers(Four):
    def step(self, action):
        return [1.0, 2.0], 0.5, False, {}

class Text(Four):
    def step(self, action):
        return "a text"

class Infinite(Four):
    def step(self, action):
        return "x", float("inf"), False, {}

class Told(Four):
    def step(self, action):
        return "x", 0.5, "false", {}

class ToldSuccess(Four):
    def step(self, action):
        return "x", 0.5, True, {"is_success": "False"}

class Array(Four):
    def step(self, action):
        import numpy
        return "x", numpy.float32(0.5), numpy.bool_(True), {"is_success": numpy.float32(0)}

@dataclass
class Move:
    x: int
    y: int

class Grid(Four):
    def step(self, action: Move):
        return "x", 0.0, True, {}

class Bare:
    def reset(self):
        return ""
'''
SCENARIO = Scenario(id="w", user_responses=("A word.",), world={"word": "lamp", "seed": 3})


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's module."""
    (tmp_path / "gym_words.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "gym_words", raising=False)


def environment(name: str, **settings: object) -> Environment:
    return make_environment(
        GymEnvironmentSettings.model_validate({"kind": "gym", "object": f"gym_words:{name}", **settings})
    )


def play(world: Environment, *replies: str) -> tuple[list[str], Outcome | None]:
    """What the agent reads in one episode, and its outcome."""

    async def run() -> tuple[list[str], Outcome | None]:
        state = await world.reset(SCENARIO, seed=0)
        contents = [state.history[0].content]
        for reply in replies:
            result = await world.step(state, Message(role="assistant", content=reply))
            state = result.state
            assert result.reward is None  # the outcome has the sum of all steps, and it would count twice
            ending = "terminated" if result.terminated else "truncated" if result.truncated else ""
            contents.append(ending or (result.response.content if result.response else ""))
        return contents, await world.conclude(state)

    return asyncio.run(run())


@pytest.mark.parametrize("name", ["Five", "Four", "Asynchronous", "Client"])
def test_a_class_with_reset_and_step_is_played(name: str) -> None:
    """Two steps of half a point each, the second of which ends the episode."""
    contents, outcome = play(environment(name, success_reward=1.0), "desk", "lamp")
    assert contents == ["Say a word. 3" if name == "Five" else "Say a word.", "Not desk.", "terminated"]
    assert outcome is not None
    assert (outcome.success, outcome.reward) == (True, 1.0)


def test_info_tells_success_and_the_instance_is_closed_with_its_state_kept() -> None:
    """`is_success` of the last step comes before the reward. The limit of turns cuts the episode off."""
    contents, outcome = play(environment("Five", success_reward=0.5, max_turns=1), "desk")
    assert contents[-1] == "truncated"
    assert outcome is not None
    assert (outcome.success, outcome.reward) == (False, 0.5)
    assert outcome.state["attributes"] == {"word": "lamp", "seed": 3, "closed": False}


def test_without_a_seed_in_its_world_a_scenario_has_one_of_its_own() -> None:
    """The same for each episode of the scenario, whatever the seed of the episode."""
    plain = Scenario(id="w", user_responses=("A word.",), world={"word": "lamp"})
    other = plain.model_copy(update={"id": "v"})
    world = environment("Five")

    async def opening(scenario: Scenario, seed: int) -> str:
        return (await world.reset(scenario, seed=seed)).history[0].content

    first, second, third = (asyncio.run(opening(*pair)) for pair in ((plain, 0), (plain, 1), (other, 0)))
    assert first == second != third


@pytest.mark.parametrize(
    ("name", "error", "reason"),
    [
        ("Numbers", DataError, r"Numbers\.step returned an observation of type list, and an agent reads texts"),
        ("Text", DataError, r"Text\.step returned str\. Return observation, reward, terminated, truncated and info"),
        ("Infinite", OutcomeError, r"Infinite\.step returned the reward inf\. Return a finite number"),
        ("Told", OutcomeError, r"Told\.step returned 'false' as the end\. Return True or False"),
        ("ToldSuccess", OutcomeError, r"ToldSuccess\.step returned 'False' as info\['is_success'\]\. Return True or"),
        ("Grid", ConfigError, r"Grid\.step takes Move with x, y, and an agent writes one text"),
        ("Bare", ConfigError, "Bare has no method step"),
    ],
)
def test_what_is_not_in_texts_is_refused(name: str, error: type[Exception], reason: str) -> None:
    """With the method, what it returned, and what to return."""
    with pytest.raises(error, match=reason):
        play(environment(name), "desk")


def test_truth_values_may_be_numpys() -> None:
    """Or 0 and 1, as the environments of robots return success."""
    _, outcome = play(environment("Array"), "desk")
    assert outcome is not None
    assert (outcome.success, outcome.reward) == (False, 0.5)


def test_the_other_kind_is_named_for_a_class_that_is_not_an_environment() -> None:
    """Of kind python, whose classes are derived from Environment."""
    settings = PythonEnvironmentSettings(kind="python", object="gym_words:Four")
    with pytest.raises(
        ConfigError, match="Derive it from Environment, or set kind: gym, for classes with reset and step"
    ):
        make_environment(settings)


@pytest.mark.parametrize("method", ["reset", "step"])
def test_the_instance_of_a_failed_episode_is_closed(method: str) -> None:
    """It may hold a session of a server, and `conclude` does not get it."""
    closed = []

    class Lost:
        def reset(self) -> str:
            if method == "reset":
                raise RuntimeError("no session")
            return "Go."

        def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
            raise RuntimeError("lost")

        def close(self) -> None:
            closed.append(self)

    world = GymEnvironment(Lost)
    closed.clear()  # of the probe

    async def run() -> None:
        state = await world.reset(SCENARIO, seed=0)
        await world.abandon(state)

    if method == "reset":
        with pytest.raises(RuntimeError, match="no session"):
            asyncio.run(run())
    else:
        asyncio.run(run())
    assert len(closed) == 1
