"""How an episode ends, and what its record says of it."""

from __future__ import annotations

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
from grpo.policy.transformers.model import load_tokenizer
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect, sample_seed
from grpo.scenarios.scenario import Metadata, Scenario
from grpo.trajectories import Outcome, Trajectory

THREE_LINES = Scenario(id="s", user_responses=("hello", "my order", "bye"))


@pytest.fixture(scope="module")
def renderer(tiny_folder: Path) -> Renderer:
    return Renderer(load_tokenizer(tiny_folder))


def _play(
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


@pytest.mark.parametrize(("max_turns", "stop", "replies"), [(2, "truncated", 2), (3, "terminated", 3)])
def test_a_limit_of_the_environment_truncates_and_a_user_who_leaves_terminates(
    renderer: Renderer, max_turns: int, stop: str, replies: int
):
    """A script of three lines: two turns cut it off; at the third the user leaves, which is no cut."""
    trajectory = _play(renderer, ConversationEnvironment(max_turns=max_turns))
    assert trajectory.stop == stop
    assert trajectory.error is None
    assert [turn.message.role for turn in trajectory.turns].count("assistant") == replies


@pytest.mark.parametrize(("room", "replies"), [(7, 1), (8, 2)])
def test_an_episode_without_room_for_a_reply_is_truncated(renderer: Renderer, room: int, replies: int):
    """A reply may have eight tokens: where seven are left after the user's second message, it is not begun."""
    whole = _play(renderer, ConversationEnvironment(), max_new_tokens=8)
    trajectory = _play(renderer, ConversationEnvironment(), max_new_tokens=8, max_context=whole.turns[2].stop + room)
    assert (trajectory.stop, trajectory.error) == ("truncated", None)
    assert [turn.message.role for turn in trajectory.turns].count("assistant") == replies


class Paid(ConversationEnvironment):
    """Rewards the second turn only, and verifies how the episode was left."""

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        result = await super().step(state, action)
        return replace(result, reward=0.25) if result.state.turn_count == 2 else result

    def verify(self, state: EnvironmentState) -> Outcome:
        return Outcome(success=state.turn_count == 3)


def test_rewards_of_turns_and_the_outcome_of_the_last_state_are_kept(renderer: Renderer):
    """A turn without a reward adds none; a cut episode is verified, too."""
    done, cut = _play(renderer, Paid()), _play(renderer, Paid(max_turns=2))
    assert (done.turn_rewards, done.outcome) == ((0.25,), Outcome(success=True))
    assert (cut.turn_rewards, cut.outcome) == ((0.25,), Outcome(success=False))


def test_the_record_says_what_was_played_by_whom_and_how(renderer: Renderer):
    """Scenario, sample, seed, policy, renderer and temperature: what a rerun needs."""
    scenario = THREE_LINES.model_copy(update={"metadata": Metadata(category="refund", difficulty="hard")})
    trajectory = _play(renderer, ConversationEnvironment(), scenario)
    assert (trajectory.scenario_id, trajectory.scenario_hash) == ("s", scenario.hash)
    assert (trajectory.category, trajectory.difficulty) == ("refund", "hard")
    assert (trajectory.sample, trajectory.seed) == (0, sample_seed(3, 2, "s", 0))
    assert trajectory.policy_hash == ScriptedPolicy(["ok"]).hash
    assert trajectory.renderer_hash == renderer.hash
    assert trajectory.temperature == 0.7


def test_what_the_environment_and_the_scenario_tell_the_agent_opens_the_episode(renderer: Renderer):
    """System prompt and context in one message, a blank line between; neither, and there is no such message."""
    told = THREE_LINES.model_copy(update={"context": "The customer is Ana."})
    opening = _play(renderer, ConversationEnvironment(system_prompt="You are a clerk."), told).turns[0].message
    assert (opening.role, opening.content) == ("system", "You are a clerk.\n\nThe customer is Ana.")
    alone = _play(renderer, ConversationEnvironment(), told).turns[0].message
    assert (alone.role, alone.content) == ("system", "The customer is Ana.")
    assert _play(renderer, ConversationEnvironment()).turns[0].message.role == "user"


class Greeter(MultiTurnAgent):
    """An agent that rewords its first turn."""

    async def process_turn(self, history: Any, user_input: str, context: Any = None) -> str:
        text = await super().process_turn(history, user_input, context)
        return text if history else "Good morning."


def test_finished_episodes_are_reported_and_reworded_turns_warned_of(
    renderer: Renderer, caplog: pytest.LogCaptureFixture
):
    """Two episodes of three turns, the first of each reworded: 1 of 2, 2 of 2, and a warning of 2 of 6 turns."""
    seen: list[tuple[str, int, int]] = []
    with progress.observed(lambda stage, done, total, _: seen.append((stage, done, total))):
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
    assert seen == [("rollout", 1, 2), ("rollout", 2, 2)] * 2
    assert [record.getMessage() for record in caplog.records if record.name == "grpo.rollout.collect"] == [
        "2 of 6 turns were reworded or written by the agent's own code after sampling; they are not trained on"
    ]


class Forgetful(MultiTurnAgent):
    """An agent whose own code fails."""

    async def respond(self, *arguments: object, **options: object) -> object:  # type: ignore[override]
        raise LookupError("no memory")


def test_a_failure_of_the_agent_is_not_an_episode(renderer: Renderer):
    """It stops the run, as a failure of the policy does."""
    with pytest.raises(LookupError, match="no memory"):
        collect(
            [THREE_LINES],
            ScriptedPolicy(["ok"]),
            ConversationEnvironment(),
            renderer,
            RolloutSettings(error_budget=1.0),
            group_size=1,
            temperature=1.0,
            run_seed=0,
            iteration=0,
            agent=Forgetful(),
        )
