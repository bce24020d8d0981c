from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import EnvironmentState, StepResult
from grpo.environments.presets import CONVERSATION_CONFIGS
from grpo.errors import DataError
from grpo.messages import Message
from grpo.scenario import Scenario

REPLY = Message(role="assistant", content="ok")
GUIDE = [
    {
        "id": "product_inquiry",
        "topic": "customer_service",
        "user_responses": ["Hi, I have a question.", "Order #12345.", "Thanks!"],
        "metadata": {"difficulty": "easy", "category": "order_status"},
    },
    {"id": "technical_issue", "topic": "technical_support", "user_responses": ["My app keeps crashing."]},
]


async def _play(world: ConversationEnvironment, scenario: Scenario | None = None) -> StepResult:
    """Last step of a conversation in which the agent always replies the same."""
    result = await world.step(await world.reset(scenario), REPLY)
    while not result.state.done:
        result = await world.step(result.state, REPLY)
    return result


def _users(messages: Sequence[Message]) -> list[str]:
    return [message.content for message in messages if message.role == "user"]


def test_user_turn_k_is_line_k_and_the_episode_ends_with_the_script():
    """Three lines, three replies of any content."""

    async def run() -> None:
        world = ConversationEnvironment(max_turns=9)
        state = await world.reset(Scenario(id="s", user_responses=("a", "b", "c")))
        for _ in range(2):
            state, _, reward, done = await world.step(state, REPLY)
            assert (reward, done) == (None, False)
        result = await world.step(state, REPLY)
        assert (result.terminated, result.truncated, result.response) == (True, False, None)
        assert _users(result.state.history) == ["a", "b", "c"]

    asyncio.run(run())


@pytest.mark.parametrize(("max_turns", "terminated"), [(1, False), (2, True)])
def test_a_script_longer_than_the_limit_is_truncated(max_turns: int, terminated: bool):
    """A script that ends at the limit is terminated instead."""
    world = ConversationEnvironment(max_turns=max_turns)
    result = asyncio.run(_play(world, Scenario(id="s", user_responses=("a", "b"))))
    assert (result.terminated, result.truncated) == (terminated, not terminated)
    assert result.state.turn_count == max_turns


def test_a_goal_without_a_script_is_refused():
    """The environment has no simulated user."""
    with pytest.raises(DataError, match="goal but no script"):
        asyncio.run(ConversationEnvironment().reset(Scenario(id="s", goal="return a lamp")))


def test_a_step_does_not_change_its_input_state():
    """The same state stepped twice is two conversations with one past."""

    async def run() -> None:
        world = ConversationEnvironment(GUIDE, randomize_scenarios=False)
        start = await world.reset()
        first = (await world.step(start, REPLY)).state
        second = (await world.step(start, Message(role="assistant", content="other"))).state
        assert (len(start.history), start.turn_count, start.done) == (1, 0, False)
        assert first.history[1] != second.history[1]
        assert first.history[2] == second.history[2]

    asyncio.run(run())


def test_scenarios_are_sampled_in_file_order_without_shuffling():
    """One after the other, and from the beginning again."""

    async def run() -> list[str]:
        world = ConversationEnvironment(scenarios=GUIDE, max_turns=6, randomize_scenarios=False)
        return [(await world.reset()).scenario.id for _ in range(3)]

    assert asyncio.run(run()) == ["product_inquiry", "technical_issue", "product_inquiry"]


def test_shuffled_scenarios_are_sampled_without_replacement():
    """Two epochs of five scenarios: each twice, in another order; a seed always samples the same."""

    async def run() -> None:
        world = ConversationEnvironment([{"id": name, "user_responses": [name]} for name in "abcde"])
        drawn = [(await world.reset()).scenario.id for _ in range(10)]
        assert sorted(drawn[:5]) == sorted(drawn[5:]) == list("abcde")
        assert drawn[:5] != drawn[5:]
        assert len({(await world.reset(seed=7)).scenario.id for _ in range(5)}) == 1
        assert len({(await world.reset(seed=seed)).scenario.id for seed in range(40)}) == 5

    asyncio.run(run())


def test_a_topic_and_a_context_make_a_scenario():
    """The user opens with both, the context is in the prompt, and the content gives the id."""

    async def run() -> tuple[EnvironmentState, EnvironmentState]:
        given = {"topic": "refund", "context": "Order delayed"}
        first, second = (ConversationEnvironment([given]) for _ in range(2))
        return await first.reset(seed=1), await second.reset(seed=2)

    first, second = asyncio.run(run())
    assert first.history[0].content == "refund: Order delayed"
    assert first.context == "Order delayed"
    assert first.scenario.hash == second.scenario.hash
    assert (first.episode_id, second.episode_id) == (f"{first.scenario.id}/1", f"{first.scenario.id}/2")


@pytest.mark.parametrize(
    ("scenarios", "error"),
    [
        ([{"id": "s", "user_responses": ["a"], "difficulty": "easy"}], r"scenario 0 \(s\): difficulty"),
        ([{"id": "s"}], r"scenario 0 \(s\): user"),
        ([GUIDE[0], GUIDE[0]], "product_inquiry"),
    ],
)
def test_invalid_scenarios_are_refused_by_name(scenarios: list[dict[str, object]], error: str):
    """A misspelt field, no user, and a duplicate id."""
    with pytest.raises(DataError, match=error):
        ConversationEnvironment(scenarios)


def test_a_reset_without_scenarios_is_refused():
    """Only environments with scenarios of their own can sample one."""
    with pytest.raises(DataError, match="has none"):
        asyncio.run(ConversationEnvironment().reset())


def test_scenarios_may_come_from_a_generator():
    """From a generator, a list or as `Scenario` they are equal."""
    from_dicts = ConversationEnvironment(GUIDE).scenarios
    from_generator = ConversationEnvironment(scenario for scenario in GUIDE).scenarios
    again = ConversationEnvironment(from_dicts).scenarios
    assert [s.hash for s in from_dicts] == [s.hash for s in from_generator] == [s.hash for s in again]


def test_the_reward_function_scores_every_turn():
    """It gets the conversation up to and with the agent's turn: 2, then 4 messages, and the scenario."""

    async def count(state: EnvironmentState) -> float:
        assert state.history[-1] == REPLY
        assert state.scenario.id == "technical_issue"
        return len(state.history)

    async def run() -> list[float | None]:
        script = Scenario(id="technical_issue", user_responses=("a", "b"))
        world = ConversationEnvironment([script], reward_fn=count)
        first = await world.step(await world.reset(), REPLY)
        second = await world.step(first.state, REPLY)
        assert second.terminated
        return [first.reward, second.reward]

    assert asyncio.run(run()) == [2.0, 4.0]


@pytest.mark.parametrize("domain", ["customer_service", "technical_support", "sales", "education"])
def test_a_preset_builds_and_runs(domain: str):
    """Every scenario of every domain runs to the end of its script within the turns of the preset."""
    world = ConversationEnvironment(**CONVERSATION_CONFIGS[domain])
    assert world.system_prompt
    for scenario in world.scenarios:
        result = asyncio.run(_play(world, scenario))
        assert result.terminated
        assert _users(result.state.history) == list(scenario.user_responses)
        assert scenario.domain == domain
