"""The history of a conversation is what the policy was shown: in rollouts, in training and in service."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grpo.agents.conversations import ConversationManager
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.rollout import RolloutSettings
from grpo.config.training import TrainingSettings
from grpo.environments.task import TaskEnvironment
from grpo.environments.users.user import User, UserTurn
from grpo.learner.batch import build_batch
from grpo.policy.scripted import ScriptedPolicy
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.serving.engine.served_model import ServedModel
from grpo.trajectories import group
from tests.grpo.agents.fixtures import Echo, make_agent, roll_out, run
from tests.grpo.serving.chat_servers import chat_server
from tests.places import ROOT

CALL = '<tool_call>{"name": "look_up", "arguments": {"order": "12"}}</tool_call>'
TEXTS = {
    "line breaks": "My lamp\nis broken.\r\n\nOrder 12.",
    "double blanks": "My  lamp   is broken. ",
    "emoji": "Broken 👩‍👩‍👧‍👦 …  😡\t!",
    "empty": "",
    "10 kB": "order  12,\n" * 1000,
}


class RecallingAgent(MultiTurnAgent):
    """Shows a message of its own before each message of the user."""

    async def process_turn(self, history: Any, user_input: str, context: Any = None) -> str:
        found = {"role": "user", "content": f"Found for {len(history)} messages."}
        return await super().process_turn([*history, found], user_input.upper(), context)


class Saying(User):
    """Says one text twice, then leaves; a scenario's own script has no empty text."""

    def __init__(self, text: str) -> None:
        self.text = text

    async def first_turn(self, scenario: Scenario, *, seed: int | None) -> UserTurn:
        return UserTurn(content=self.text, memory={"said": 1})

    async def next_turn(self, scenario: Scenario, history: Any, memory: Mapping[str, Any]) -> UserTurn:
        return UserTurn(content=self.text if memory["said"] == 1 else None, memory={"said": memory["said"] + 1})


def _template_agent() -> MultiTurnAgent:
    """The agent of a new project, which shows a message without line breaks."""
    spec = importlib.util.spec_from_file_location("template_agent", ROOT / "data" / "project" / "agent.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    agent = module.ShopAgent()
    assert isinstance(agent, MultiTurnAgent)
    return agent


def look_up(state: Mapping[str, Any], order: str) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Look up an order."""
    return state, {"order": order, "note": "two\nlines"}


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


def _play(agent: MultiTurnAgent, text: str, renderer: Renderer) -> list[tuple[str, str]]:
    """Roles and texts that the policy was shown, without system prompt and calls."""
    scenario = Scenario(id="s", user_responses=("It is broken.",))
    environment = TaskEnvironment(
        [scenario], functions=(look_up,), criteria={"never": lambda _: False}, user=Saying(text)
    )
    (trajectory,) = collect(
        [scenario], ScriptedPolicy([CALL, "Which one?", CALL, "Done."]), environment, renderer,
        RolloutSettings(max_context=200_000, max_new_tokens=500), agent=agent,
        group_size=1, temperature=1.0, run_seed=0, iteration=0,
    )  # fmt: skip
    assert trajectory.error is None
    return [(message.role, message.content) for message in trajectory.messages if message.role != "system"]


@pytest.mark.parametrize("name", TEXTS)
def test_the_templates_agent_is_rolled_out_with_every_text(policy: TransformersPolicy, name: str):
    """A user's message, a call and its result, and the message again; the policy reads it without line breaks."""
    renderer = Renderer(policy.tokenizer, tools=TaskEnvironment(functions=(look_up,), criteria={"x": bool}).tools)
    shown = _play(_template_agent(), TEXTS[name], renderer)
    text = " ".join(TEXTS[name].split())
    result = json.dumps({"order": "12", "note": "two\nlines"})
    assert [role for role, _ in shown] == ["user", "assistant", "tool", "assistant"] * 2
    assert [shown[0][1], shown[2][1], shown[4][1]] == [text, result, text]


@pytest.mark.parametrize("kind", [_template_agent, RecallingAgent])
def test_an_agent_that_changes_what_is_read_is_trained_on(policy: TransformersPolicy, kind: Any):
    """Every sampled token of three turns is in the learner's batch, and the context is what the hook has shown."""
    lines = ("one\ntwo", "three   four", "five")
    trajectories = roll_out(kind(), policy, Renderer(policy.tokenizer), lines=lines)
    scored = [replace(trajectory, terminal_reward=float(trajectory.sample)) for trajectory in trajectories]
    batch = build_batch(group(scored), TrainingSettings(), policy_hash=policy.hash)
    assert [int(sample.loss_mask.sum()) for sample in batch.groups[0]] == [18, 18]
    shown = [message.content for message in trajectories[0].messages if message.role == "user"]
    normalized = ["one two", "three four", "five"]
    recalled = [f"Found for {count} messages." for count in (0, 2, 4)]
    both = [text for pair in zip(recalled, (line.upper() for line in lines), strict=True) for text in pair]
    assert shown == (both if kind is RecallingAgent else normalized)


@pytest.mark.parametrize("name", TEXTS)
def test_the_templates_agent_serves_every_text(policy: TransformersPolicy, tmp_path: Path, name: str):
    """Two turns with a tool call between, joined by the client's own messages, and the log has what was read."""
    tool = {"name": "look_up", "parameters": {"type": "object", "properties": {"order": {"type": "string"}}}}
    messages: list[dict[str, Any]] = []
    with chat_server(tmp_path, partial(_scripted, policy.tokenizer)) as server:

        def send(seed: int, *new: dict[str, Any]) -> Any:
            messages.extend(new)
            reply = server.client().chat.completions.create(
                model="shop",
                messages=messages,
                seed=seed,
                tools=[{"type": "function", "function": tool}],  # type: ignore[arg-type, list-item]
            )
            message = reply.choices[0].message
            messages.append(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
            return message

        question = {"role": "user", "content": TEXTS[name]}
        call = send(0, question).tool_calls[0]
        assert send(1, {"role": "tool", "tool_call_id": call.id, "content": "a\n  b"}).content == "Done."
        assert send(1, question).content == "Done."
        joined, turns = server.service.counts.joined, server.turns()
    assert (joined["new"], joined["prefix"]) == (1, 2)
    shown = [t.message.content for turn in turns for t in turn.turns if t.message.role in ("user", "tool")]
    text = " ".join(TEXTS[name].split())
    assert shown == [text, "a\n  b", text]


def _scripted(tokenizer: Any, current: str) -> ServedModel | None:
    """A version with the template's agent; an even seed calls a tool."""
    if current:
        return None
    policy, agent = ScriptedPolicy([[CALL], ["Done."]]), _template_agent()
    policy.tokenizer = tokenizer  # type: ignore[attr-defined]
    agent.set_policy(policy)
    return ServedModel(
        model="shop", version="shop/1", policy=policy, agent=agent, temperature=1.0, max_new_tokens=64,
        max_context=50_000,
    )  # fmt: skip


def test_a_conversation_of_a_manager_goes_on_with_what_was_shown():
    """Its second prompt has the first message as the hook changed it."""
    echo = Echo()
    manager = ConversationManager(make_agent(echo, type(_template_agent())))

    async def talk() -> None:
        conversation = await manager.start_conversation("ada")
        for text in ("a\nb", "c  d"):
            await manager.generate_multiturn_response(conversation.conversation_id, text)

    run(talk())
    assert [message.content for message in echo.prompts[-1] if message.role == "user"] == ["a b", "c d"]


class Drafting(MultiTurnAgent):
    """Asks its policy for a draft and for a better one, in each turn."""

    async def generate_response(self, messages: Any, context: Any = None) -> str:
        draft = await super().generate_response(messages, context)
        more = [*messages, {"role": "assistant", "content": draft}, {"role": "user", "content": "Better."}]
        return await super().generate_response(more, context)


def test_messages_between_two_samples_of_a_turn_are_not_the_users(policy: TransformersPolicy):
    """The history has the user's message, not the agent's own; all of them stay in the context."""
    trajectory = roll_out(Drafting(), ScriptedPolicy(["Draft.", "Final."]), Renderer(policy.tokenizer))[0]
    shown = [message.content for message in trajectory.messages if message.role == "user"]
    assert shown == ["hello", "Better.", "my order", "Better.", "bye", "Better."]
