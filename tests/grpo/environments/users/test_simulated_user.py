from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from grpo.config.environments import SimulatedUserSettings
from grpo.environments.catalog import make_environment
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import Environment, StepResult
from grpo.environments.users.simulated_user import SimulatedUser, parse_goal
from grpo.environments.users.user import SimulatedUserError
from grpo.environments.users.user_model import UserModel
from grpo.errors import ConfigError, DataError
from grpo.messages import Message
from grpo.policy.scripted import ScriptedPolicy
from grpo.renderers.byte_renderer import ByteRenderer
from grpo.scenario import Expected, Scenario

LAMP = Scenario(id="lamp", goal="I want to send my lamp back.\n- order number: 4711\n- e-mail address: ann@example.com")
PARCEL = Scenario(id="parcel", goal="Where is my parcel?\n- order number: 4711", expected=Expected(facts=("two days",)))


async def _talk(world: Environment, scenario: Scenario, replies: Sequence[str], seed: int = 0) -> StepResult:
    """Last step of a conversation with these replies, or until the user leaves."""
    state = await world.reset(scenario, seed=seed)
    for reply in replies:
        result = await world.step(state, Message(role="assistant", content=reply))
        state = result.state
        if state.done:
            break
    return result


def _user_messages(result: StepResult) -> list[str]:
    return [message.content for message in result.state.history if message.role == "user"]


def _ruled(patience: int = 3) -> ConversationEnvironment:
    return ConversationEnvironment(user=SimulatedUser(patience=patience))


def test_a_goal_is_parsed_from_text():
    """List lines are hidden facts; without a reason, the other lines are the opening."""
    goal = parse_goal(LAMP.goal)
    assert goal.opening == "I want to send my lamp back."
    assert dict(goal.facts) == {"order number": "4711", "e-mail address": "ann@example.com"}
    goal = parse_goal("Persona: rude\nReason: Cancel it.\nKnown: You are Ann.\nUnknown: the number")
    assert (goal.opening, dict(goal.facts)) == ("Cancel it.", {"known": "You are Ann."})


@pytest.mark.parametrize(
    ("reply", "asked"),
    [
        ("What is your order number?", ["order number"]),
        ("Please tell me the number of the order.", ["order number"]),
        ("I need your e-mail address and the order number.", ["order number", "e-mail address"]),
        ("Your order number is on the invoice.", []),
        ("What is your number?", []),
        ("I looked at the order. Which number shall I call?", []),
    ],
)
def test_a_fact_is_requested_by_its_full_name_in_one_question(reply: str, asked: list[str]):
    """A statement does not request it, and half its name is another fact."""
    assert parse_goal(LAMP.goal).requested_facts(reply) == asked


def test_a_hidden_fact_is_disclosed_on_request_only():
    """Neither the opening nor a repeated goal discloses the number."""
    result = asyncio.run(_talk(_ruled(), LAMP, ["Hello.", "What is your order number?"]))
    opening, repeated, disclosed = _user_messages(result)
    assert opening == "I want to send my lamp back."
    assert "4711" not in opening + repeated
    assert "4711" in disclosed
    assert "ann@example.com" not in disclosed


def test_a_user_is_satisfied_when_all_facts_were_requested_and_no_question_is_left():
    """Asking again does not help, and a question leaves the user waiting."""
    result = asyncio.run(
        _talk(_ruled(), LAMP, ["Your order number?", "And the e-mail address?", "Anything else?", "It is done."])
    )
    assert (result.terminated, result.truncated) == (True, False)
    outcome = _ruled().verify(result.state)
    assert outcome is not None
    assert outcome.success


def test_a_user_is_satisfied_by_the_expected_facts():
    """ "Two days" ends it, whether or not the number was requested."""
    result = asyncio.run(_talk(_ruled(), PARCEL, ["It comes in Two Days."]))
    assert result.terminated
    outcome = _ruled().verify(result.state)
    assert outcome is not None
    assert dict(outcome.checks) == {"satisfied": True, "facts_communicated": True}


@pytest.mark.parametrize("patience", [1, 3])
def test_patience_ends_the_conversation_after_so_many_unhelpful_turns(patience: int):
    """A helpful turn between them costs no patience; leaving terminates the episode without success."""
    replies = ["What is your order number?", *["I do not know."] * 9]
    result = asyncio.run(_talk(_ruled(patience), PARCEL, replies))
    assert result.state.turn_count == 1 + patience
    assert (result.terminated, result.truncated) == (True, False)
    outcome = _ruled().verify(result.state)
    assert outcome is not None
    assert dict(outcome.checks) == {"satisfied": False, "facts_communicated": False}


def test_the_turn_limit_truncates_the_conversation():
    """Without satisfaction."""
    world = ConversationEnvironment(max_turns=1, user=SimulatedUser())
    result = asyncio.run(_talk(world, PARCEL, ["Hello."]))
    assert (result.terminated, result.truncated) == (False, True)


def test_the_seed_samples_the_phrases_of_a_user():
    """Equal for the same seed, and different among ten seeds."""
    replies = ["What is your order number?"]
    conversations = [
        tuple(_user_messages(asyncio.run(_talk(_ruled(), PARCEL, replies, seed)))) for seed in (*range(10), 0)
    ]
    assert conversations[0] == conversations[-1]
    assert len(set(conversations)) > 1


def test_a_scenario_without_a_goal_is_refused():
    """A script is not a goal."""
    with pytest.raises(DataError, match="has no goal"):
        asyncio.run(_ruled().reset(Scenario(id="s", user_responses=("a",))))


def _with_model(*words: str) -> ConversationEnvironment:
    """User whose model returns these replies in turn, with seed 0."""
    model = UserModel(ScriptedPolicy([[line] for line in words]), ByteRenderer())
    return ConversationEnvironment(user=SimulatedUser(patience=2, model=model))


def test_a_model_writes_the_messages_and_ends_the_conversation():
    """Its messages are in the history, without [END]."""
    world = _with_model("My parcel is lost — où?", "It is 4711.", "[END]")
    result = asyncio.run(_talk(world, PARCEL, ["What is your order number?", "It is on its way."]))
    assert _user_messages(result) == ["My parcel is lost — où?", "It is 4711."]
    assert result.terminated
    assert result.state.metadata["user"]["left"] == "satisfied"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["  "], "turn 0: an empty reply"),
        (["Hi.", "Agent: how are you?"], "turn 1: out of its role: 'Agent: how are you"),
        (["Hello, how can I help you today?"], "turn 0: out of its role"),
        (["My parcel 4711 is lost."], "turn 0: disclosed the order number unasked"),
    ],
)
def test_an_invalid_message_of_the_users_model_fails_the_episode(words: list[str], fault: str):
    """An empty reply, another role, and a hidden fact given away are not failures of the agent."""
    with pytest.raises(SimulatedUserError, match=f"scenario parcel: the simulated user's model, {fault}"):
        asyncio.run(_talk(_with_model(*words), PARCEL, ["Hello."]))


def test_a_model_may_disclose_a_requested_fact():
    """The same message is valid after the question."""
    result = asyncio.run(_talk(_with_model("Hi.", "It is 4711."), PARCEL, ["What is your order number?"]))
    assert _user_messages(result)[-1] == "It is 4711."


def test_an_unreachable_user_model_fails_the_episode(monkeypatch: pytest.MonkeyPatch):
    """No server listens on port 9 of this machine."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    settings = SimulatedUserSettings(kind="simulated_user", model="openai+http://127.0.0.1:9/v1#user")
    with pytest.raises(SimulatedUserError, match=r"does not answer: http://127\.0\.0\.1:9/v1#user cannot be reached"):
        asyncio.run(make_environment(settings).reset(PARCEL, seed=0))


def test_settings_make_a_user_of_either_kind(tmp_path: Path):
    """Rules without a model; the replies of a script with one."""
    (tmp_path / "user.yaml").write_text(yaml.safe_dump([["Hello there."]]))
    ruled = SimulatedUserSettings(kind="simulated_user", patience=1)
    voiced = SimulatedUserSettings(kind="simulated_user", model=f"stub://{tmp_path}/user.yaml")
    openings = [asyncio.run(make_environment(s).reset(PARCEL, seed=0)).history[0].content for s in (ruled, voiced)]
    assert openings == ["Where is my parcel?", "Hello there."]
    result = asyncio.run(_talk(make_environment(ruled), PARCEL, ["Hm."]))
    assert result.terminated


def test_ineffective_settings_of_a_user_are_refused():
    """A temperature without a model, and a model whose tokenizer is not available."""
    with pytest.raises(ValueError, match="temperature has no effect without model"):
        SimulatedUserSettings(kind="simulated_user", temperature=0.1)
    settings = SimulatedUserSettings(kind="simulated_user", model="openai-tokens+http://127.0.0.1:9/v1#user")
    with pytest.raises(ConfigError, match=r"for the simulated user\. Write openai\+http"):
        make_environment(settings)


def test_a_satisfied_user_does_not_decide_a_task_with_a_database():
    """The reward basis names the database, which a conversation does not have: success is unknown, its checks stay."""
    scenario = PARCEL.model_copy(update={"expected": Expected(facts=("two days",), reward_basis=("DB", "COMMUNICATE"))})
    result = asyncio.run(_talk(_ruled(), scenario, ["It comes in Two Days."]))
    outcome = _ruled().verify(result.state)
    assert outcome is not None
    assert (outcome.success, outcome.unjudged) == (None, ("DB",))
    assert dict(outcome.checks) == {"satisfied": True, "facts_communicated": True}
