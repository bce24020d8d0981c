"""Answered turns in the form in which the database of several servers holds them: compressed JSON, not encrypted."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from pydantic import ConfigDict, TypeAdapter, with_config

from grpo.agents.transcript import TokenTranscript, TranscriptState
from grpo.messages import Message, Tool
from grpo.renderers.chat_template import Renderer
from grpo.serving.engine.versions import ServedVersion
from grpo.serving.requests.answered_turns import AnsweredTurn

_FASTEST = 1


@with_config(ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants"))
@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredTurn:
    """State that is needed to continue a turn."""

    user: str | None
    tools: tuple[Tool, ...]
    messages: tuple[Message, ...]
    earlier_calls: tuple[str, ...]
    strategy: str | None
    transcript: TranscriptState


_ADAPTER = TypeAdapter(_StoredTurn)


def store_turn(turn: AnsweredTurn) -> bytes:
    """Convert a turn to bytes. Its version must be loaded."""
    stored = _StoredTurn(
        user=turn.user,
        tools=turn.tools,
        messages=turn.messages,
        earlier_calls=tuple(sorted(turn.earlier_calls)),
        strategy=turn.strategy,
        transcript=turn.tokens.state(),
    )
    return zlib.compress(_ADAPTER.dump_json(stored), _FASTEST)


def restore_turn(
    content: bytes, *, turn_id: str, conversation_id: str, owner: str, version: ServedVersion | None
) -> AnsweredTurn:
    """Convert bytes of `store_turn` back to a turn.

    The turn has its tokens only if its version is loaded here and its renderer still has the same hash. Otherwise its
    `version` and `transcript` are None.
    """
    stored = _ADAPTER.validate_json(zlib.decompress(content))
    transcript = None
    if version is not None:
        renderer: Renderer = version.renderer(stored.tools)
        if renderer.hash == stored.transcript.renderer:
            transcript = TokenTranscript.restored(stored.transcript, renderer, max_context=version.max_context)
    return AnsweredTurn(
        turn_id=turn_id,
        conversation_id=conversation_id,
        owner=owner,
        user=stored.user,
        version=None if transcript is None else version,
        tools=stored.tools,
        messages=stored.messages,
        transcript=transcript,
        earlier_calls=frozenset(stored.earlier_calls),
        strategy=stored.strategy,
    )
