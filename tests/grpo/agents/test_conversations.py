from __future__ import annotations

import asyncio
import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from grpo.agents.conversations import ConversationManager
from grpo.agents.memory import ConversationMemory
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.agents.tool_agent import ToolAgent
from grpo.config.agent import AgentConfig
from grpo.errors import ConfigError, DataError
from grpo.messages import Message
from grpo.policy.transformers.model import load
from tests.grpo.agents.fixtures import Echo, make_agent, run, stub

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def test_conversations_that_run_at_once_never_mix():
    """Twenty users, five turns each, in a shuffled order: each reads its own history and nothing else."""
    agent = make_agent(Echo())
    manager = ConversationManager(agent)

    async def user(name: str, rng: random.Random) -> list[Message]:
        conversation = await manager.start_conversation(name)
        for turn in range(5):
            for _ in range(rng.randrange(5)):
                await asyncio.sleep(0)
            text = f"{name} turn {turn}"
            assert await manager.generate_multiturn_response(conversation.conversation_id, text) == f"You said: {text}"
        return conversation.messages

    async def all_users() -> list[list[Message]]:
        return list(await asyncio.gather(*(user(f"u{k}", random.Random(k)) for k in range(20))))

    for k, messages in enumerate(run(all_users())):
        sent = [f"u{k} turn {turn}" for turn in range(5)]
        assert [m.content for m in messages] == [text for line in sent for text in (line, f"You said: {line}")]
    for prompt in agent.policy.prompts:  # type: ignore[union-attr]
        assert len({m.content.split(" turn")[0].removeprefix("You said: ") for m in prompt}) == 1


def test_messages_of_one_conversation_are_answered_in_order():
    """Two concurrent messages: the second prompt has the first message and its reply."""
    agent = make_agent(Echo())
    manager = ConversationManager(agent)

    async def both() -> list[str]:
        conversation = await manager.start_conversation("ada")
        respond = manager.generate_multiturn_response
        await asyncio.gather(respond(conversation.conversation_id, "one"), respond(conversation.conversation_id, "two"))
        return [m.content for m in conversation.messages]

    assert run(both()) == ["one", "You said: one", "two", "You said: two"]


def test_every_turn_is_logged_with_policy_and_strategy(tmp_path: Path):
    """Conversation, turn, time, policy and strategy, in memory and as lines of JSON."""
    agent = stub("Hello!", "Bye!")
    manager = ConversationManager(agent, log=tmp_path / "turns.jsonl", now=lambda: NOON)

    async def talk() -> Any:
        conversation = await manager.start_conversation("ada", strategy="customer_service")
        await manager.generate_multiturn_response(conversation.conversation_id, user_message="hi")
        await manager.generate_multiturn_response(conversation.conversation_id, user_message="bye", strategy="sales")
        return conversation

    conversation = run(talk())
    assert agent.policy is not None
    assert [(t.turn_id, t.role, t.content, t.strategy) for t in conversation.turns] == [
        (0, "user", "hi", "customer_service"),
        (1, "assistant", "Hello!", "customer_service"),
        (2, "user", "bye", "sales"),
        (3, "assistant", "Bye!", "sales"),
    ]
    lines = [json.loads(line) for line in (tmp_path / "turns.jsonl").read_text().splitlines()]
    assert [line["turn_id"] for line in lines] == [0, 1, 2, 3]
    for line in lines:
        assert line["conversation_id"] == conversation.conversation_id
        assert line["policy_hash"] == agent.policy.hash
        assert line["ts"] == "2026-01-02T12:00:00+00:00"


def test_the_strategy_of_a_conversation_holds_until_it_is_replaced():
    """It is in every prompt, with the context of the conversation's start."""
    agent = make_agent(Echo())
    manager = ConversationManager(agent)

    async def talk() -> None:
        conversation = await manager.start_conversation("ada", strategy="educational", context={"level": "expert"})
        for strategy in (None, "sales", None):
            await manager.generate_multiturn_response(conversation.conversation_id, "hi", strategy=strategy)

    run(talk())
    prompts = [prompt[0].content for prompt in agent.policy.prompts]  # type: ignore[union-attr]
    assert prompts[0].startswith("Strategy educational, level expert.")
    assert [prompt.split(",")[0] for prompt in prompts] == ["Strategy educational", "Strategy sales", "Strategy sales"]


def test_an_unknown_conversation_or_strategy_is_refused():
    """Unknown or ended conversations, an unknown strategy, sizes below one."""
    manager = ConversationManager(stub("a"))
    with pytest.raises(DataError, match="no conversation 'x'"):
        run(manager.generate_multiturn_response("x", "hi"))
    conversation = run(manager.start_conversation("ada"))
    with pytest.raises(ConfigError, match="'poker'"):
        run(manager.generate_multiturn_response(conversation.conversation_id, "hi", strategy="poker"))
    manager.end_conversation(conversation.conversation_id)
    with pytest.raises(DataError, match="it was never started, has ended or was removed"):
        run(manager.generate_multiturn_response(conversation.conversation_id, "hi"))
    with pytest.raises(ConfigError, match="max_conversations 0"):
        ConversationManager(stub("a"), max_conversations=0)


def test_conversations_are_bounded_in_number_and_in_length():
    """Of three the least recently used one is removed; one ends after two turns."""
    manager = ConversationManager(stub("a"), max_conversations=2, max_conversation_turns=2)

    async def talk() -> None:
        first, second = [await manager.start_conversation(name) for name in ("ada", "bob")]
        await manager.generate_multiturn_response(first.conversation_id, "hi")
        await manager.start_conversation("cleo")
        await manager.generate_multiturn_response(first.conversation_id, "hi")
        with pytest.raises(DataError, match="was removed"):
            await manager.generate_multiturn_response(second.conversation_id, "hi")
        with pytest.raises(DataError, match=r"its 2 turns.*max_conversation_turns"):
            await manager.generate_multiturn_response(first.conversation_id, "hi")

    run(talk())


def test_a_failed_reply_leaves_the_conversation_unchanged():
    """The same message can be sent again."""

    class Fails(Echo):
        broken = True

        def reply(self, last: Message) -> str:
            if self.broken:
                raise ConnectionError("gone")
            return super().reply(last)

    policy = Fails()
    manager = ConversationManager(make_agent(policy))
    conversation = run(manager.start_conversation("ada"))
    with pytest.raises(ConnectionError):
        run(manager.generate_multiturn_response(conversation.conversation_id, "hi"))
    assert (conversation.messages, conversation.turns) == ([], [])
    policy.broken = False
    assert run(manager.generate_multiturn_response(conversation.conversation_id, "hi")) == "You said: hi"


def test_each_user_has_a_memory_of_their_own():
    """Ada's message is recalled in her next conversation, not in Bob's."""
    agent = make_agent(Echo())
    agent.memory = ConversationMemory()
    manager = ConversationManager(agent)
    for name, text in (("ada", "My order is 4711."), ("bob", "Which order?"), ("ada", "Which order?")):
        conversation = run(manager.start_conversation(name))
        run(manager.generate_multiturn_response(conversation.conversation_id, text))
    _, bob, ada = agent.policy.prompts  # type: ignore[union-attr]
    assert "4711" not in " ".join(m.content for m in bob)
    assert "- My order is 4711." in ada[0].content


def test_tool_results_stay_in_the_conversation():
    """The next turn's prompt has the call and its result."""
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    config = AgentConfig(use_stub_model=True, stub_responses=(call, "Noon.", "Bye."))
    agent = ToolAgent(config, [{"name": "now", "function": lambda: 12}])
    run(agent.initialize())
    manager = ConversationManager(agent)
    conversation = run(manager.start_conversation("ada"))
    assert run(manager.generate_multiturn_response(conversation.conversation_id, "time?")) == "Noon."
    assert [m.role for m in conversation.messages] == ["user", "assistant", "tool", "assistant"]
    assert [t.content for t in conversation.turns] == ["time?", "Noon."]


def test_hooks_without_a_context_parameter_are_called(tiny_folder: Path):
    """The guide's subclass, on a real model; its context still reaches the prompt."""

    class Polite(MultiTurnAgent):
        async def generate_response(self, conversation_history: Any) -> str:  # type: ignore[override]
            return f"Dear customer, {await super().generate_response(conversation_history)}"

    manager = ConversationManager(make_agent(load(tiny_folder), Polite, max_new_tokens=5))
    conversation = run(manager.start_conversation("ada", strategy="sales"))
    for text in ("hi", "again"):
        assert run(manager.generate_multiturn_response(conversation.conversation_id, text)).startswith(
            "Dear customer, "
        )
    echo = make_agent(Echo(), Polite)
    manager = ConversationManager(echo)
    conversation = run(manager.start_conversation("ada", strategy="sales"))
    assert run(manager.generate_multiturn_response(conversation.conversation_id, "hi")) == "Dear customer, You said: hi"
    assert echo.policy.prompts[0][0].content.startswith("Strategy sales")  # type: ignore[union-attr]


@pytest.mark.parametrize("window", [2, 3, 4])
def test_a_tool_is_called_in_a_conversation_that_is_longer_than_its_window(window: int):
    """The second prompt of a turn goes on from the first one, with the call and its result."""
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    calls = 0

    def now() -> int:
        nonlocal calls
        calls += 1
        return 12

    async def talk(memory_window: int | None) -> list[str]:
        config = AgentConfig(
            use_stub_model=True,
            stub_responses=("Hello", call, "It is 12.", call, "Still 12."),
            memory_window=memory_window,
        )
        agent = ToolAgent(config, [{"name": "now", "function": now}])
        await agent.initialize()
        manager = ConversationManager(agent)
        conversation = await manager.start_conversation("u")
        texts = ("hi", "time?", "hm", "and now?")
        return [await manager.generate_multiturn_response(conversation.conversation_id, text) for text in texts]

    whole = run(talk(None))
    assert calls > 1
    assert run(talk(window)) == whole
