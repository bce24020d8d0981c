"""Chat with a model: line by line, or with a file of conversations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grpo.agents.agent import to_messages
from grpo.agents.conversations import ConversationManager
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.config.loading import describe_errors, parse_override
from grpo.errors import ConfigError, DataError
from grpo.messages import Message

_MAX_TURNS = 10_000


def open_agent(model: str, options: Sequence[str] = ()) -> MultiTurnAgent:
    """An agent with the model at an address. `options` are settings `key=value` of `AgentConfig`.

    Raises `PolicyError` or `AddressError` if the model is missing, `ConfigError` if an option is unknown.
    """
    given = {**dict(map(parse_override, options)), "model_name": model}
    try:
        config = AgentConfig(**given)
    except ValidationError as error:
        raise ConfigError("; ".join(describe_errors(error, AgentConfig, given))) from error
    agent = MultiTurnAgent(config, policy=checkpoint_policy(model))
    asyncio.run(agent.initialize())
    return agent


def chat(agent: MultiTurnAgent, lines: Iterable[str]) -> Iterator[str]:
    """Yield the reply to each line of one conversation. Empty lines are skipped."""
    manager = ConversationManager(agent, max_conversation_turns=_MAX_TURNS)
    with asyncio.Runner() as runner:
        conversation = runner.run(manager.start_conversation("terminal"))
        for line in lines:
            if line.strip():
                yield runner.run(manager.generate_multiturn_response(conversation.conversation_id, line.strip()))


def reply_once(agent: MultiTurnAgent, conversation: Sequence[Message]) -> str:
    """Reply to a whole conversation."""
    return asyncio.run(agent.generate_response([message.to_template() for message in conversation]))


def reply_to_each(
    reply: Callable[[Sequence[Message]], str], conversations: Sequence[list[Message]]
) -> list[dict[str, Any]]:
    """Each conversation with its reply, for JSON: `{"messages": […], "reply": "…"}`."""
    return [
        {
            "messages": [message.to_template() for message in conversation],
            "reply": reply(conversation),
        }
        for conversation in conversations
    ]


def unanswered_calls(agent: MultiTurnAgent, reply: str) -> list[str]:
    """Tool calls in a reply. Outside of an environment nothing answers them."""
    assert agent.renderer is not None
    return list(map(str, agent.renderer.parse_text(reply).tool_calls))


def read_conversations(path: Path) -> list[list[Message]]:
    """The conversations in a JSON file. It has a list, and each item is a user message or a list of messages.

    If an item is neither, raises `DataError` with its position.
    """
    try:
        items = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(items, list) or not items:
        kind = "an empty list" if items == [] else type(items).__name__
        raise DataError(f"{path} holds {kind}, and not a list of at least one conversation")
    return [_conversation(item, f"{path}, item {index}") for index, item in enumerate(items)]


def _conversation(item: object, place: str) -> list[Message]:
    if isinstance(item, str) and item.strip():
        return [Message(role="user", content=item)]
    messages = item.get("messages") if isinstance(item, dict) else item
    try:
        parsed = to_messages(messages) if isinstance(messages, list) and messages else ()
    except DataError as error:
        raise DataError(f"{place}: {error}") from error
    is_said = bool(parsed) and (parsed[-1].role == "tool" or parsed[-1].content != "")
    if not is_said or parsed[-1].role not in ("user", "tool"):
        raise DataError(
            f"{place}: it is neither a text nor a list of messages that ends with a message of the user or a tool"
        )
    return list(parsed)


def checkpoint_policy(model: str) -> Any:
    """The policy of a registered version or of a checkpoint in a store. None for any other address."""
    if "://" in model:
        return None
    from grpo.artifacts import store_of
    from grpo.learner.checkpoints import load_policy
    from grpo_tasks.model_addresses import stored_checkpoint

    artifact = stored_checkpoint(model)
    return None if artifact is None else load_policy(store_of(artifact), artifact)
