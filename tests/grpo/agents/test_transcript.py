"""Transcripts of agents in rollouts: hooks are called, and only sampled tokens are trained on."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from grpo.agents.memory import ConversationMemory
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.agents.tool_agent import ToolAgent
from grpo.agents.transcript import PrefixMismatch, TokenTranscript
from grpo.config.agent import AgentConfig
from grpo.config.rollout import RolloutSettings
from grpo.config.training import TrainingSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import EnvironmentState, StepResult
from grpo.environments.support_desk.desk import SupportDesk
from grpo.errors import ConfigError, DataError
from grpo.learner.batch import build_batch
from grpo.messages import Message
from grpo.policy.policy import Sampling, Session
from grpo.policy.scripted import ScriptedPolicy
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.trajectories import Trajectory, group
from tests.grpo.agents.fixtures import Echo, make_agent, roll_out

CALL = '<tool_call>{"name": "double", "arguments": {"number": 21}}</tool_call>'


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


@pytest.fixture(scope="module")
def renderer(policy: TransformersPolicy) -> Renderer:
    return Renderer(policy.tokenizer)


class Spy(MultiTurnAgent):
    """Records the arguments of each hook."""

    def __init__(self, *args: Any, **parts: Any) -> None:
        super().__init__(*args, **parts)
        self.turns: list[tuple[list[str], str]] = []
        self.responses: list[list[str]] = []

    async def process_turn(self, history: Any, user_input: str, context: Any = None) -> str:
        self.turns.append(([message["role"] for message in history], user_input))
        return await super().process_turn(history, user_input, context)

    async def generate_response(self, messages: Any, context: Any = None) -> str:
        self.responses.append([message["role"] for message in messages])
        return await super().generate_response(messages, context)


class Polite(MultiTurnAgent):
    """The guide's subclass: it takes messages alone, and overrides every reply."""

    async def generate_response(self, conversation_history: Any) -> str:  # type: ignore[override]
        return f"Dear customer, {await super().generate_response(conversation_history)}"


class PoliteOnce(MultiTurnAgent):
    """Overrides its first turn only."""

    async def process_turn(self, history: Any, user_input: str, context: Any = None) -> str:
        text = await super().process_turn(history, user_input, context)
        return text if history else "Good morning."


class Canned(MultiTurnAgent):
    """Greets without its policy."""

    async def process_turn(self, history: Any, user_input: str, context: Any = None) -> str:
        return await super().process_turn(history, user_input, context) if history else "Good morning."


class Advised(MultiTurnAgent):
    """Calls another agent before it generates."""

    adviser: MultiTurnAgent

    async def process_turn(self, history: Any, user_input: str, context: Any = None) -> str:
        assert await self.adviser.generate_response(user_input) == f"You said: {user_input}"
        return await super().process_turn(history, user_input, context)


class Prefixed(MultiTurnAgent):
    """Adds the same prefix to each conversation."""

    async def generate_response(self, messages: Any, context: Any = None) -> str:
        return await super().generate_response([{"role": "system", "content": "note"}, *messages], context)


class Truncating(MultiTurnAgent):
    """Passes only the last message to its policy."""

    async def generate_response(self, messages: Any, context: Any = None) -> str:
        return await super().generate_response(messages[-1:], context)


def _tokens(trajectory: Trajectory) -> tuple[list[int], list[bool]]:
    return trajectory.token_ids.tolist(), trajectory.loss_mask.tolist()


def test_a_released_transcript_goes_on_with_the_same_tokens(renderer: Renderer):
    """Ids beyond two bytes and log-probabilities of eight are kept; a later turn appends to a copy."""
    session, sampling = cast(Session, None), Sampling(temperature=1.0, max_new_tokens=1, seed=0)
    transcript = TokenTranscript(session, renderer, sampling, max_context=100)
    transcript.ids += [5, 262_143]
    transcript.mask += [False, True]
    transcript.logprobs += [0.0, -1 / 3]
    transcript.release()
    copy = transcript.resume(session, sampling)
    copy.ids += [7]
    assert (copy.ids, copy.mask, copy.logprobs) == ([5, 262_143, 7], [False, True], [0.0, -1 / 3])
    assert list(transcript.ids) == [5, 262_143]


def test_the_rollout_calls_the_hooks_of_a_subclass_on_each_turn(policy: TransformersPolicy, renderer: Renderer):
    """Two samples of three turns: six calls of each hook, with the history so far."""
    spy = Spy()
    trajectories = roll_out(spy, policy, renderer)
    assert len(spy.turns) == sum(m.role == "assistant" for t in trajectories for m in t.messages) == 6
    lengths = sorted((len(history), text) for history, text in spy.turns)
    assert lengths == [(0, "hello")] * 2 + [(2, "my order")] * 2 + [(4, "bye")] * 2
    assert sorted(map(len, spy.responses)) == [1, 1, 3, 3, 5, 5]


def test_hooks_that_change_nothing_change_no_token(policy: TransformersPolicy, renderer: Renderer):
    """Ids, mask and log-probabilities are those of a rollout without hooks."""
    for plain, spied in zip(
        roll_out(MultiTurnAgent(), policy, renderer), roll_out(Spy(), policy, renderer), strict=True
    ):
        assert _tokens(plain) == _tokens(spied)
        assert np.array_equal(plain.sampler_logprobs, spied.sampler_logprobs)


def test_an_overridden_turn_is_scored_as_sent_and_not_trained_on(
    policy: TransformersPolicy, renderer: Renderer, caplog: pytest.LogCaptureFixture
):
    """The first of three turns has the new text as message, and the sampled tokens, off the mask."""
    with caplog.at_level(logging.WARNING, "grpo.rollout.collect"):
        trajectories = roll_out(PoliteOnce(), policy, renderer)
    for edited, plain in zip(trajectories, roll_out(MultiTurnAgent(), policy, renderer), strict=True):
        assert edited.token_ids.tolist() == plain.token_ids.tolist()
        first, *others = [turn for turn in edited.turns if turn.message.role == "assistant"]
        assert first.message.content == "Good morning."
        assert not edited.loss_mask[first.start : first.stop].any()
        assert (edited.sampler_logprobs[first.start : first.stop] == 0).all()
        assert all(edited.loss_mask[turn.start : turn.stop].all() for turn in others)
        assert (edited.overridden_turns, plain.overridden_turns) == (1, 0)
        assert edited.stop == plain.stop == "terminated"
    assert "2 of 6 turns were changed" in caplog.text


def test_overriding_every_turn_leaves_nothing_to_train_on(policy: TransformersPolicy, renderer: Renderer):
    """The guide's subclass overrides every turn, so the loss mask is empty, whatever the rewards."""
    trajectories = [replace(t, terminal_reward=float(t.sample)) for t in roll_out(Polite(), policy, renderer)]
    assert all(
        m.content.startswith("Dear customer, ") for t in trajectories for m in t.messages if m.role == "assistant"
    )
    with pytest.raises(DataError, match="the agent's own code overrides the text of its turns"):
        build_batch(group(trajectories), TrainingSettings(), policy_hash=policy.hash)


def test_the_learner_trains_on_turns_that_were_not_overridden(policy: TransformersPolicy, renderer: Renderer):
    """The advantage is on the tokens of turns two and three, by trajectory and by turn."""
    trajectories = [replace(t, terminal_reward=float(t.sample)) for t in roll_out(PoliteOnce(), policy, renderer)]
    for credit in ("trajectory", "turn"):
        settings = TrainingSettings(credit_assignment=credit)
        batch = build_batch(group(trajectories), settings, policy_hash=policy.hash)
        for sample in batch.groups[0]:
            assert np.array_equal(sample.advantages != 0, sample.loss_mask)
            assert sample.loss_mask.sum() == 12  # two turns of six tokens


def test_a_reply_without_the_policy_is_read_by_the_policy(policy: TransformersPolicy, renderer: Renderer):
    """Its tokens are in the context and off the mask, and later log-probabilities are conditioned on them."""
    for trajectory in roll_out(Canned(), policy, renderer):
        assert trajectory.messages[1].content == "Good morning."
        assert trajectory.overridden_turns == 1
        with torch.no_grad():
            ids = torch.tensor([trajectory.token_ids.tolist()])
            logprobs = torch.log_softmax(policy.model(input_ids=ids).logits[0].float(), dim=-1)
        sampled = np.flatnonzero(trajectory.loss_mask)
        assert len(sampled) == 12
        exact = [float(logprobs[i - 1, trajectory.token_ids[i]]) for i in sampled]
        assert trajectory.sampler_logprobs[sampled] == pytest.approx(exact, abs=1e-4)


def test_a_prefix_added_by_a_hook_is_recorded_once(policy: TransformersPolicy, renderer: Renderer):
    """It is the first message of the trajectory, and every sampled token is trained on."""
    for trajectory in roll_out(Prefixed(), policy, renderer):
        assert [m.role for m in trajectory.messages] == ["system", *("user", "assistant") * 3]
        assert trajectory.messages[0].content == "note"
        assert trajectory.completion_tokens == 18


def test_another_agents_reply_is_not_in_the_trajectory(policy: TransformersPolicy, renderer: Renderer):
    """An agent may call a second one: the tokens are those of a rollout without it."""
    agent = Advised()
    agent.adviser = make_agent(Echo())
    for plain, advised in zip(
        roll_out(MultiTurnAgent(), policy, renderer), roll_out(agent, policy, renderer), strict=True
    ):
        assert _tokens(plain) == _tokens(advised)


def test_a_hook_that_changes_earlier_messages_is_refused(policy: TransformersPolicy, renderer: Renderer):
    """Tokens that were read stay read; the message states the allowed changes."""
    with pytest.raises(PrefixMismatch, match=r"does not extend the 2 .*same prefix each time"):
        roll_out(Truncating(), policy, renderer)


@pytest.mark.parametrize("setting", [{"memory_window": 2}, {"enable_context_compression": True}])
def test_an_agent_that_truncates_its_context_is_refused_before_a_rollout(
    policy: TransformersPolicy, renderer: Renderer, setting: dict[str, Any]
):
    """An episode is one token sequence; the message names the setting and the limit to use."""
    spy = Spy(AgentConfig(**setting))
    with pytest.raises(ConfigError, match=rf"{next(iter(setting))}.*rollout\.max_context"):
        roll_out(spy, policy, renderer)
    assert not spy.turns


def test_prompt_and_strategy_of_the_agent_are_in_the_trajectory(policy: TransformersPolicy, renderer: Renderer):
    """The agent's own prompt comes before the environment's, in one system message."""

    agent = MultiTurnAgent(AgentConfig(system_prompt="Be brief.", strategy="sales"))
    world = ConversationEnvironment(system_prompt="You sell lamps.")
    (trajectory, _) = roll_out(agent, policy, renderer, world=world, lines=("How much is it?", "fine"))
    prompt = trajectory.messages[0]
    assert prompt.role == "system"
    assert prompt.content.startswith("Be brief.\n\nStrategy sales, stage consideration.")
    assert prompt.content.endswith("\n\nYou sell lamps.")


def test_rollouts_read_the_memory_and_do_not_write_it(policy: TransformersPolicy, renderer: Renderer):
    """All samples start with the same memory, so they are comparable."""
    memory = ConversationMemory()
    memory.add("user", "My order is 4711.")
    for trajectory in roll_out(MultiTurnAgent(memory=memory), policy, renderer, lines=("Where is my order?", "bye")):
        assert "- My order is 4711." in trajectory.messages[0].content
    assert memory.turns() == [("user", "My order is 4711.")]


def test_an_agents_own_tools_are_part_of_its_turn_in_a_rollout(renderer: Renderer):
    """Call, result and answer are in the trajectory; the environment receives the answer, the next turn everything."""
    agent = ToolAgent(AgentConfig(), [{"name": "double", "function": lambda number: 2 * number}])
    tooled = Renderer(renderer.tokenizer, tools=agent.tools)
    policy = ScriptedPolicy([[CALL, "It is 42.", "Bye."]])
    (trajectory,) = roll_out(agent, policy, tooled, lines=("21?", "thanks"), group_size=1, max_new_tokens=200)
    assert [m.role for m in trajectory.messages][-6:] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert [m.content for m in trajectory.messages][-4:] == ["42", "It is 42.", "thanks", "Bye."]
    spans = [turn for turn in trajectory.turns if turn.message.role == "assistant"]
    assert all(trajectory.loss_mask[turn.start : turn.stop].all() for turn in spans)
    assert trajectory.loss_mask.sum() == sum(turn.stop - turn.start for turn in spans)


def test_calls_of_the_environments_tools_go_to_the_environment(renderer: Renderer):
    """An agent with its own tool serves the support desk, whose state handles look_up."""

    agent = ToolAgent(AgentConfig(), [{"name": "double", "function": lambda number: 2 * number}])
    desk = SupportDesk()
    look_up = '<tool_call>{"name": "look_up", "arguments": {"order": "1234"}}</tool_call>'
    (trajectory,) = collect(
        [Scenario(id="s", user_responses=("Order 1234?",), world={"orders": {"1234": {"item": "lamp", "state": "x"}}})],
        ScriptedPolicy([CALL, look_up, "It was delivered."]),
        desk,
        Renderer(renderer.tokenizer, tools=(*desk.tools, *agent.tools)),
        RolloutSettings(max_new_tokens=200, max_context=4000),
        group_size=1,
        temperature=1.0,
        run_seed=0,
        iteration=0,
        agent=agent,
    )
    results = [(m.role, m.content) for m in trajectory.messages if m.role == "tool"]
    assert results[0] == ("tool", "42")
    assert '"lamp"' in results[1][1]
    assert trajectory.outcome is not None
    assert trajectory.outcome.checks["looked_up"]


def test_tools_that_the_renderer_lacks_are_refused(policy: TransformersPolicy, renderer: Renderer):
    """The prompt would not list them; the message names the remedy."""
    agent = ToolAgent(AgentConfig(), [{"name": "double", "function": lambda number: 2 * number}])
    with pytest.raises(ConfigError, match=r"does not show the agent's tools double.*agent\.tools"):
        roll_out(agent, policy, renderer)


def test_reasoning_is_split_off_the_message_and_stays_in_the_loss_mask(renderer: Renderer):
    """The environment receives the answer; all sampled tokens, reasoning included, are in the mask."""
    actions: list[str] = []

    class Recording(ConversationEnvironment):
        async def step(self, state: EnvironmentState, action: Message) -> StepResult:
            actions.append(action.content)
            return await super().step(state, action)

    policy = ScriptedPolicy(["<think>an order</think>Which one?", "<think>endless"])
    agent = MultiTurnAgent(AgentConfig(enable_reasoning=True))
    (trajectory,) = roll_out(
        agent, policy, renderer, world=Recording(), lines=("hi", "bye"), group_size=1, max_new_tokens=200
    )
    assert actions == ["Which one?", ""]
    first = next(turn for turn in trajectory.turns if turn.message.role == "assistant")
    assert "<think>an order</think>" in renderer.decode(trajectory.token_ids[first.start : first.stop].tolist())
    assert trajectory.loss_mask[first.start : first.stop].all()
    assert trajectory.overridden_turns == 0
