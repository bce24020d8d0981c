"""Gymnasium's environments in texts, compared with minigrid itself."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from grpo.config.environments import GymnasiumTextSettings
from grpo.environments.catalog import make_environment
from grpo.environments.environment import EnvironmentState
from grpo.environments.seeded_worlds import play_actions
from grpo.environments.text_game import GameTurn, TextGame, TextGameEnvironment
from grpo.errors import DataError
from grpo.messages import Message
from grpo.scenario import Scenario

gymnasium = pytest.importorskip("gymnasium", reason="the extra minigrid is not installed")
pytest.importorskip("minigrid", reason="the extra minigrid is not installed")
from grpo.environments.gymnasium_text.babyai import BabyAILevel, babyai_scenarios, bot_actions  # noqa: E402
from grpo.environments.gymnasium_text.environment import (  # noqa: E402
    GymnasiumTextEnvironment,
    env_digest,
    make_text_env,
)

LEVELS = ("GoToObj", "GoToLocal", "GoToRedBall", "GoToDoor", "OpenDoor", "PickupLoc")


def scenario(level: str = "GoToObj", seed: int = 0, **world: Any) -> Scenario:
    return Scenario(
        id=f"{level}-{seed}",
        user_responses=("go",),
        world={"id": f"BabyAI-{level}-v0", "seed": seed, **world},
    )


def play(environment: GymnasiumTextEnvironment, case: Scenario, *actions: str) -> EnvironmentState:
    return asyncio.run(play_actions(environment, case, actions))


def library(case: Scenario, actions: list[str]) -> tuple[str, float, bool, bool]:
    """Mission, sum of the rewards and both kinds of end as minigrid gives them, by its own numbers of the actions."""
    env = gymnasium.make(case.world["id"], **case.world.get("options", {}))
    observation, _ = env.reset(seed=case.world["seed"])
    total, terminated, truncated = 0.0, False, False
    for name in actions:
        _, reward, terminated, truncated, _ = env.step(env.unwrapped.actions[name])
        total += float(reward)
    return observation["mission"], total, terminated, truncated


@pytest.mark.parametrize("level", LEVELS)
def test_minigrids_bot_completes_each_mission_with_minigrids_own_reward(level: str):
    """Its authors' bot solves these levels always; here six of each, with the mission, reward and end of minigrid."""
    environment = make_environment(GymnasiumTextSettings(kind="gymnasium_text", max_turns=64))
    for seed in range(6):
        case = scenario(level, seed)
        actions = bot_actions(case)
        state = asyncio.run(play_actions(environment, case, actions))
        mission, reward, terminated, _ = library(case, actions)
        outcome = environment.verify(state)
        assert outcome is not None
        assert state.history[0].content.startswith(f"{mission}. Actions: left, right, forward, pickup, drop, toggle, ")
        assert (outcome.reward, outcome.success, state.done) == (reward, True, terminated)
        assert state.turn_count == len(actions)


def test_the_limit_of_steps_of_the_library_ends_an_episode_without_success():
    """`max_steps: 3` is minigrid's own argument; the reward stays 0."""
    environment = GymnasiumTextEnvironment()
    case = scenario(options={"max_steps": 3})
    state = play(environment, case, "left", "left", "left", "left")
    assert library(case, ["left"] * 3)[1:] == (0.0, False, True)
    outcome = environment.verify(state)
    assert (state.done, state.turn_count, outcome.success, outcome.reward) == (True, 3, False, 0.0)


def test_the_limit_of_turns_cuts_an_episode_off():
    """After two turns here, which is not the library's end."""
    environment = GymnasiumTextEnvironment(max_turns=2)

    async def last() -> tuple[bool, bool]:
        state = await environment.reset(scenario())
        state = (await environment.step(state, Message(role="assistant", content="left"))).state
        result = await environment.step(state, Message(role="assistant", content="left"))
        return result.terminated, result.truncated

    assert asyncio.run(last()) == (False, True)


def test_an_action_that_does_not_exist_is_answered_in_words_and_moves_nothing():
    """It counts as a turn; case, spaces and a full stop do not matter."""
    environment = GymnasiumTextEnvironment()
    state = play(environment, scenario(), "go home", " Left. ")
    assert state.history[2].content == (
        "There is no action 'go home'. Actions: left, right, forward, pickup, drop, toggle, done."
    )
    assert state.history[4] == play(environment, scenario(), "left").history[2]
    assert state.turn_count == 2


def test_episodes_at_once_do_not_disturb_each_other():
    """Six episodes whose steps alternate end as they do alone."""
    environment = GymnasiumTextEnvironment(max_turns=64)
    cases = [scenario(level) for level in LEVELS]
    actions = [bot_actions(case) for case in cases]

    async def together() -> list[EnvironmentState]:
        states = [await environment.reset(case) for case in cases]
        for turn in range(max(map(len, actions))):
            for index, names in enumerate(actions):
                if turn < len(names):
                    action = Message(role="assistant", content=names[turn])
                    states[index] = (await environment.step(states[index], action)).state
        return states

    alone = [play(environment, case, *names) for case, names in zip(cases, actions, strict=True)]
    assert [state.history for state in asyncio.run(together())] == [state.history for state in alone]


def test_a_state_can_be_continued_in_two_ways():
    """A step leaves the state before it as it was."""
    environment = GymnasiumTextEnvironment()

    async def continue_twice() -> list[str]:
        state = await environment.reset(scenario())
        contents = []
        for action in ("left", "right", "left"):
            result = await environment.step(state, Message(role="assistant", content=action))
            contents.append(result.state.history[-1].content)
        return contents

    first, other, again = asyncio.run(continue_twice())
    assert first == again != other


def test_a_state_is_the_same_whichever_way_led_to_it():
    """Left and right again, and an action that does not exist, leave the state; left does not."""
    environment = GymnasiumTextEnvironment()
    digests = [
        environment.state_digest(play(environment, scenario(), *actions))
        for actions in ((), ("left", "right"), ("go home",), ("left",))
    ]
    assert digests[0] == digests[1] == digests[2] != digests[3]


def test_a_world_that_is_not_the_generated_one_is_refused():
    """Another release of minigrid may make another world of the same seed."""
    environment = GymnasiumTextEnvironment()
    with pytest.raises(DataError, match="starts from another world than when it was generated"):
        asyncio.run(environment.check(scenario(digest="0" * 16)))


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"id": "BabyAI-GoToMoon-v0", "seed": 1}, "BabyAI-GoToMoon-v0 cannot be made"),
        ({"id": "BabyAI-GoToObj-v0"}, "world needs id and seed"),
        ({"id": "BabyAI-GoToObj-v0", "seed": 1, "options": {"size": 3}}, "cannot be made: .*size"),
        ({"id": "FrozenLake-v1", "seed": 1}, "its observation space is Discrete, and an agent reads and writes texts"),
    ],
)
def test_a_scenario_without_a_text_environment_is_refused(world: dict[str, Any], message: str):
    """Before any episode."""
    case = Scenario(id="s", user_responses=("go",), world=world)
    with pytest.raises(DataError, match=message):
        asyncio.run(GymnasiumTextEnvironment().check(case))


def test_worlds_come_from_seeds_of_their_own_range_and_none_is_drawn_twice():
    """The smallest level repeats worlds; those whose digest begins with 0 to 3, a quarter, are held out."""
    level = {"id": "BabyAI-GoToObjS4-v0", "train": 60, "heldout": 20}
    records = list(babyai_scenarios([BabyAILevel.model_validate(level)]))
    seeds = {split: [r["world"]["seed"] for r in records if r["split"] == split] for split in ("train", "heldout")}
    assert [len(seeds["train"]), len(seeds["heldout"])] == [60, 20]
    assert max(seeds["train"]) > 59, "some seeds made a world that was there or is held out"
    assert min(seeds["heldout"]) >= 1_000_000
    assert len({r["world"]["digest"] for r in records}) == 80
    assert all((int(r["world"]["digest"][0], 16) < 4) == (r["split"] == "heldout") for r in records)
    assert records == list(babyai_scenarios([BabyAILevel.model_validate(level)]))


def test_a_level_that_has_too_few_worlds_is_an_error():
    """A room of four cells has some hundred worlds."""
    with pytest.raises(DataError, match=r"BabyAI-GoToObjS4-v0 has only \d+ different worlds for train, and 9000"):
        list(babyai_scenarios([BabyAILevel(id="BabyAI-GoToObjS4-v0", train=90_000)]))


class _Waiting(TextGame):
    """Game whose action `wait` waits until another game has an action. It stands for one that computes for long."""

    done = threading.Event()

    def step(self, action: str) -> GameTurn:
        if action == "wait":
            return GameTurn(text=f"{self.done.wait(240)}")
        self.done.set()
        return GameTurn(text="done")

    def state_digest(self) -> None:
        """No digest."""

    def copied(self) -> _Waiting:
        return self

    success = None


class _WaitingEnvironment(TextGameEnvironment):
    def start(self, scenario: Scenario) -> tuple[TextGame, str]:
        return _Waiting(), "wait or go"


def test_a_game_that_computes_does_not_stop_the_other_episodes():
    """The second step starts while the first one waits for it. On the event loop, it would start afterwards."""

    async def together() -> list[str]:
        environment = _WaitingEnvironment()
        states = [await environment.reset(Scenario(id=name, user_responses=("go",))) for name in ("a", "b")]
        actions = [Message(role="assistant", content=content) for content in ("wait", "go")]
        results = await asyncio.gather(*map(environment.step, states, actions))
        return [result.state.history[-1].content for result in results]

    assert asyncio.run(together()) == ["True", "done"]


def test_the_first_part_of_a_mission_is_part_of_the_state():
    """ "Open the red door, then …": the same world before and after the first part counts as completed.

    The mission's own record is set by hand, so that the world itself stays the same.
    """
    env = make_text_env("BabyAI-GoToSeqS5R2-v0", {})
    for seed in range(50):
        env.reset(seed=seed)
        if hasattr(instruction := env.unwrapped.instrs, "instr_a"):
            break
    before = env_digest(env)
    instruction.a_done = "continue"
    assert env_digest(env) == before
    instruction.a_done = "success"
    assert env_digest(env) != before


def test_one_level_with_two_sizes_is_two_levels():
    """They need names of their own, which are the categories and begin the ids."""
    id = "BabyAI-GoToLocal-v0"
    small = BabyAILevel(id=id, options={"room_size": 6, "num_dists": 2}, train=3, name="small")
    large = BabyAILevel(id=id, options={"room_size": 8, "num_dists": 2}, train=3)
    records = list(babyai_scenarios([small, large]))
    assert len({record["id"] for record in records}) == 6
    assert [record["metadata"]["category"] for record in records] == ["small"] * 3 + ["GoToLocal-v0"] * 3
    with pytest.raises(DataError, match="two levels are called GoToLocal-v0"):
        list(babyai_scenarios([small.model_copy(update={"name": ""}), large]))
