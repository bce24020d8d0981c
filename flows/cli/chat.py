"""Talking to a model: line by line, or a file of conversations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grpo.agents.conversations import ConversationManager
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.config.loading import describe_errors, parse_override
from grpo.errors import ConfigError, DataError
from grpo.messages import Message

_MOST_TURNS = 10_000


def open_agent(model: str, options: Sequence[str] = ()) -> MultiTurnAgent:
    """The agent that speaks with the model at an address; `options` are `key=value`, of `AgentConfig`.

    Raises `PolicyError` or `AddressError` where there is no such model, `ConfigError` for an option that is none.
    """
    given = {**dict(map(parse_override, options)), "model_name": model}
    try:
        config = AgentConfig(**given)
    except ValidationError as error:
        raise ConfigError("; ".join(describe_errors(error, given))) from error
    agent = MultiTurnAgent(config, policy=_checkpoint(model))
    asyncio.run(agent.initialize())
    return agent


def converse(agent: MultiTurnAgent, lines: Iterable[str]) -> Iterator[str]:
    """The replies to the lines of one user, one after the other; empty lines are passed over."""
    manager = ConversationManager(agent, max_conversation_turns=_MOST_TURNS)
    with asyncio.Runner() as runner:
        begun = runner.run(manager.start_conversation("terminal"))
        for line in lines:
            if line.strip():
                yield runner.run(manager.generate_multiturn_response(begun.conversation_id, line.strip()))


def answer(agent: MultiTurnAgent, conversations: Sequence[list[Message]]) -> list[dict[str, Any]]:
    """Each conversation with the reply that it gets, as JSON has it: `{"messages": […], "reply": "…"}`."""
    with asyncio.Runner() as runner:
        return [
            {
                "messages": [{"role": message.role, "content": message.content} for message in conversation],
                "reply": runner.run(agent.generate_response([message.to_template() for message in conversation])),
            }
            for conversation in conversations
        ]


def read_conversations(path: Path) -> list[list[Message]]:
    """The conversations in a JSON file: a list whose items are a user's line, or a list of messages.

    Raises `DataError` that names the item that is neither.
    """
    try:
        items = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(items, list) or not items:
        raise DataError(f"{path} holds {type(items).__name__}, expected a list with at least one conversation")
    return [_conversation(item, f"{path}, item {index}") for index, item in enumerate(items)]


def _conversation(item: object, place: str) -> list[Message]:
    if isinstance(item, str) and item.strip():
        return [Message(role="user", content=item)]
    messages = item if isinstance(item, list) else []
    try:
        found = [Message(role=message["role"], content=message["content"]) for message in messages]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{place}: a message needs role and content ({error!r})") from error
    if not found or found[-1].role != "user":
        raise DataError(f"{place}: expected a line of a user, or messages of which the last is a user's")
    return found


def _checkpoint(model: str) -> Any:
    """The policy of a registered version or of a checkpoint in a store; None for any other address."""
    if "://" in model:
        return None
    from grpo.artifacts import ArtifactStore
    from grpo.learner.checkpoints import load_policy
    from tasks.models import store_of, stored_checkpoint

    artifact = stored_checkpoint(model)
    return None if artifact is None else load_policy(ArtifactStore(store_of(artifact)), artifact)
