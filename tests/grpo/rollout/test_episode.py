"""Episodes: their ends and their trajectories."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo import progress
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.rollout import RolloutSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import EnvironmentState, StepResult
from grpo.messages import Message
from grpo.policy.scripted import ScriptedPolicy
from grpo.policy.tokenizer import load_tokenizer
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect, sample_seed
from grpo.scenario import Metadata, Scenario
from grpo.trajectories import Outcome, Trajectory

THREE_LINES = Scenario(id="s", user_responses=("hello", "my order", "bye"))


@pytest.fixture(scope="module")
def renderer(tiny_folder: Path) -> Renderer:
    return Renderer(load_tokenizer(tiny_folder))


def _run_episode(
    renderer: Renderer, world: ConversationEnvironment, scenario: Scenario = THREE_LINES, **settings: object
) -> Trajectory:
    (trajectory,) = collect(
        [scenario],
        ScriptedPolicy(["ok"]),
        world,
        renderer,
        RolloutSettings.model_validate(settings),
        group_size=1,
        temperature=0.7,
        run_seed=3,
        iteration=2,
    )
    return trajectory


@pytest.mark.parametrize(("max_turns", "stop", "replies"), [(2, "turn_limit", 2), (3, "terminated", 3)])
def test_a_limit_of_the_environment_truncates_and_a_user_who_leaves_terminates(
    renderer: Renderer, max_turns: int, stop: str, replies: int
):
    """A script of three lines: max_turns 2 ends it; at the third line the user leaves."""
    trajectory = _run_episode(renderer, ConversationEnvironment(max_turns=max_turns))
    assert trajectory.stop == stop
    assert trajectory.error is None
    assert [turn.message.role for turn in trajectory.turns].count("assistant") == replies


@pytest.mark.parametrize(("room", "replies"), [(7, 1), (8, 2)])
def test_an_episode_without_room_for_a_reply_is_truncated(renderer: Renderer, room: int, replies: int):
    """A reply may have eight tokens: with seven left after the second user message it is not generated."""
    full = _run_episode(renderer, ConversationEnvironment(), max_new_tokens=8)
    trajectory = _run_episode(
        renderer, ConversationEnvironment(), max_new_tokens=8, max_context=full.turns[2].stop + room
    )
    assert (trajectory.stop, trajectory.error) == ("truncated", None)
    assert [turn.message.role for turn in trajectory.turns].count("assistant") == replies


class Rewarding(ConversationEnvironment):
    """Rewards the second turn only, and verifies the number of turns."""

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        result = await super().step(state, action)
        return replace(result, reward=0.25) if result.state.turn_count == 2 else result

    def verify(self, state: EnvironmentState) -> Outcome:
        return Outcome(success=state.turn_count == 3)


def test_turn_rewards_and_the_outcome_of_the_last_state_are_recorded(renderer: Renderer):
    """A turn without a reward adds none; a truncated episode is verified, too."""
    ended, truncated = _run_episode(renderer, Rewarding()), _run_episode(renderer, Rewarding(max_turns=2))
    assert (ended.turn_rewards, ended.outcome) == ((0.25,), Outcome(success=True))
    assert (truncated.turn_rewards, truncated.outcome) == ((0.25,), Outcome(success=False))


class Counted(ConversationEnvironment):
    """The state is the number of turns."""

    def state_digest(self, state: EnvironmentState) -> str | None:
        return str(state.turn_count)


class Unknown(Counted):
    """The state of the second turn is unknown."""

    def state_digest(self, state: EnvironmentState) -> str | None:
        return None if state.turn_count == 1 else super().state_digest(state)


def test_the_state_of_each_turn_is_recorded_where_the_environment_gives_one(renderer: Renderer):
    """Of three turns, and of the one that was cut off for its length. If one is unknown, there are none."""
    assert _run_episode(renderer, Counted()).turn_states == ("0", "1", "2")
    assert _run_episode(renderer, Unknown()).turn_states == ()
    assert len(set(_run_episode(renderer, ConversationEnvironment()).turn_states)) == 3
    cut = _run_episode(renderer, Counted(), max_new_tokens=1, on_truncation="end")
    assert (cut.stop, cut.turn_states) == ("truncated", ("0",))


class Concluded(ConversationEnvironment):
    """The outcome has the reply that was cut off."""

    async def conclude(self, state: EnvironmentState, cut_off: Message | None = None) -> Outcome:
        return Outcome(success=False, state={"cut_off": None if cut_off is None else cut_off.content})


def test_the_environment_gets_the_reply_that_was_cut_off(renderer: Renderer):
    """None if the last reply was whole."""
    whole = _run_episode(renderer, Concluded()).outcome
    cut = _run_episode(renderer, Concluded(), max_new_tokens=1, on_truncation="end").outcome
    assert whole is not None
    assert cut is not None
    assert (whole.state, cut.state) == ({"cut_off": None}, {"cut_off": "ok"})


def test_a_trajectory_records_how_it_was_generated(renderer: Renderer):
    """Scenario, sample, seed, policy, renderer and temperature, as a rerun needs them."""
    scenario = THREE_LINES.model_copy(update={"metadata": Metadata(category="refund", difficulty="hard")})
    trajectory = _run_episode(renderer, ConversationEnvironment(), scenario)
    assert (trajectory.scenario_id, trajectory.scenario_hash) == ("s", scenario.hash)
    assert (trajectory.category, trajectory.difficulty) == ("refund", "hard")
    assert (trajectory.sample, trajectory.seed) == (0, sample_seed(3, 2, "s", 0))
    assert trajectory.policy_hash == ScriptedPolicy(["ok"]).hash
    assert trajectory.renderer_hash == renderer.hash
    assert trajectory.temperature == 0.7


def test_system_prompt_and_scenario_context_open_the_episode(renderer: Renderer):
    """One message with a blank line between them; without both the system message is absent."""
    scenario = THREE_LINES.model_copy(update={"context": "The customer is Ana."})
    opening = (
        _run_episode(renderer, ConversationEnvironment(system_prompt="You are a clerk."), scenario).turns[0].message
    )
    assert (opening.role, opening.content) == ("system", "You are a clerk.\n\nThe customer is Ana.")
    alone = _run_episode(renderer, ConversationEnvironment(), scenario).turns[0].message
    assert (alone.role, alone.content) == ("system", "The customer is Ana.")
    assert _run_episode(renderer, ConversationEnvironment()).turns[0].message.role == "user"


class Greeter(MultiTurnAgent):
    """An agent that overrides its first turn."""

    async def process_turn(self, history: Any, user_input: str, context: Any = None) -> str:
        text = await super().process_turn(history, user_input, context)
        return text if history else "Good morning."


def test_progress_is_reported_and_overridden_turns_are_logged(renderer: Renderer, caplog: pytest.LogCaptureFixture):
    """Two episodes of three turns, the first of each overridden: 1 of 2, 2 of 2, and a warning of 2 of 6 turns."""
    reports: list[tuple[str, int, int]] = []
    with progress.observed(lambda stage, done, total, _: reports.append((stage, done, total))):
        for agent in (Greeter(), MultiTurnAgent()):
            collect(
                [THREE_LINES],
                ScriptedPolicy(["ok"]),
                ConversationEnvironment(),
                renderer,
                RolloutSettings(),
                group_size=2,
                temperature=1.0,
                run_seed=0,
                iteration=0,
                agent=agent,
            )
    assert reports == [("rollout", 1, 2), ("rollout", 2, 2)] * 2
    assert [record.getMessage() for record in caplog.records if record.name == "grpo.rollout.collect"] == [
        "2 of 6 turns were changed or written by the agent's own code after sampling. They are not trained on"
    ]


class Failing(MultiTurnAgent):
    """An agent whose own code fails."""

    async def respond(self, *arguments: object, **options: object) -> object:  # type: ignore[override]
        raise LookupError("no memory")


def test_an_agent_error_fails_its_episode(renderer: Renderer):
    """With the place in the agent's code; episodes that the budget does not allow for end the run."""
    (failed,) = collect(
        [THREE_LINES],
        ScriptedPolicy(["ok"]),
        ConversationEnvironment(),
        renderer,
        RolloutSettings(error_budget=1.0),
        group_size=1,
        temperature=1.0,
        run_seed=0,
        iteration=0,
        agent=Failing(),
    )
    assert failed.error is not None
    assert failed.error.startswith("the agent raised LookupError: no memory (test_episode.py:")


class Dealt(ConversationEnvironment):
    """Draws the first message of the user with the episode's seed, and fails before it with `fails`."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails

    async def reset(self, scenario: Scenario, *, seed: int | None = None) -> EnvironmentState:
        if self.fails:
            raise LookupError("no such order")
        drawn = scenario.model_copy(update={"user_responses": (f"my order {seed}", "bye")})
        return await super().reset(drawn, seed=seed)


def test_the_environment_draws_with_the_seed_of_the_sample(renderer: Renderer):
    """The seed in the record: another episode with it has the same user message."""
    trajectory = _run_episode(renderer, Dealt())
    assert trajectory.turns[0].message.content == f"my order {trajectory.seed}"


@pytest.mark.parametrize("fails", [False, True])
def test_tokens_mask_and_log_probabilities_have_their_types_without_a_reply_too(renderer: Renderer, fails: bool):
    """int32, bool and float32, of which an episode that failed at its first message has none."""
    trajectory = _run_episode(renderer, Dealt(fails=fails), error_budget=1.0)
    arrays = (trajectory.token_ids, trajectory.loss_mask, trajectory.sampler_logprobs)
    assert [array.dtype.name for array in arrays] == ["int32", "bool", "float32"]
    assert all((len(array) == 0) is fails for array in arrays)
    assert str(trajectory.error).startswith("LookupError: no such order (test_episode.py:" if fails else "None")


class Empty(ConversationEnvironment):
    """The digest of the first state is an empty text, such as the guesses so far."""

    def state_digest(self, state: EnvironmentState) -> str | None:
        return "x" * state.turn_count


def test_an_empty_text_is_a_digest_too(renderer: Renderer):
    """One digest for each turn."""
    assert _run_episode(renderer, Empty()).turn_states == ("", "x", "xx")


class Session(ConversationEnvironment):
    """Fails at the second step, and counts what it releases."""

    def __init__(self, *, hangs: bool = False, stuck: bool = False) -> None:
        super().__init__()
        self.hangs, self.stuck, self.released = hangs, stuck, 0

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        if state.turn_count == 1:
            if self.hangs:
                await asyncio.sleep(60)
            raise RuntimeError("lost the session")
        return await super().step(state, action)

    async def abandon(self, state: EnvironmentState) -> None:
        assert state.turn_count == 1
        self.released += 1
        if self.stuck:
            raise RuntimeError("cannot close")


@pytest.mark.parametrize("hangs", [False, True])
def test_a_failed_episode_is_released_by_its_environment(renderer: Renderer, hangs: bool):
    """Once, with its last state, after an exception and after a timeout."""
    world = Session(hangs=hangs)
    trajectory = _run_episode(renderer, world, step_timeout_s=0.2, error_budget=1.0)
    assert (trajectory.stop, world.released) == ("failed", 1)


def test_an_episode_that_ends_is_not_abandoned(renderer: Renderer):
    """`conclude` gets it."""
    world = Session()
    world.step = super(Session, world).step  # type: ignore[method-assign]
    assert (_run_episode(renderer, world).stop, world.released) == ("terminated", 0)


def test_an_environment_that_cannot_release_an_episode_is_named_in_a_warning(
    renderer: Renderer, caplog: pytest.LogCaptureFixture
):
    """The episode keeps the reason of its failure."""
    trajectory = _run_episode(renderer, Session(stuck=True), error_budget=1.0)
    assert "lost the session" in (trajectory.error or "")
    assert "is not released: " in caplog.text
    assert "cannot close" in caplog.text
