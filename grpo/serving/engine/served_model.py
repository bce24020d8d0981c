"""Loaded versions of a model, and how they are loaded on threads and released."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.renderer import RendererSettings
from grpo.errors import PolicyError
from grpo.messages import Tool
from grpo.policy.policy import Policy
from grpo.serving.engine.engine import ProcessPolicy
from grpo.user_failures import is_exception, user_code


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """Loaded version: policy, agent, and the settings with which its gates have measured it."""

    model: str
    """Name of the registered model, by which clients ask for it."""
    version: str
    """Name and version, e.g. `support-desk/3`."""
    policy: Policy
    agent: MultiTurnAgent
    renderer: RendererSettings | None = None
    """Renderer of the user's own. None renders with the chat template."""
    system_prompt: str = ""
    """System prompt of the environment, before a system message of the client."""
    tools: tuple[Tool, ...] = ()
    """Tools of the environment. If a client sends no tools, the model may call these, and the client runs them."""
    temperature: float = 1.0
    max_new_tokens: int = 512
    max_context: int | None = None
    """Most tokens of a conversation. None takes the policy's context."""
    registered: float | None = None
    """Unix time of the registration. None for a model outside of the registry."""


@runtime_checkable
class WatchesAlias(Protocol):
    """Look-up of the version to serve which notices if the alias was moved by hand."""

    moved: str | None
    """Sentence about an alias that names another version than the promoted one. None if it names the promoted one."""

    def is_changed(self) -> bool:
        """True if the address names another version than at the last call, e.g. after a rollback. Loads nothing."""
        ...


@runtime_checkable
class LoadsVersions(Protocol):
    """Look-up of the version to serve that can load another version of its model."""

    def load_version(self, version: str) -> ServedModel:
        """Load a version by its name, e.g. `support-desk/3`. Raises `GRPOError` for a version of another model."""
        ...


def release(served: ServedModel) -> None:
    """End the process of a model that is not served, or is not served any more."""
    if isinstance(served.policy, ProcessPolicy):
        served.policy.close()


class FirstVersionError(PolicyError):
    """The first version of a server cannot be loaded, because of an exception that is not a `GRPOError`."""


async def load(next_version: Callable[[str], ServedModel | None], current: str) -> ServedModel | None:
    """Call `next_version` on a thread. If this call is cancelled, the version is released as soon as it is loaded."""
    abandoned = threading.Event()

    def look_up() -> ServedModel | None:
        with user_code("the version's code", error=PolicyError, passes=is_exception):  # the code is imported here
            served = next_version(current)
        if served is None or not abandoned.is_set():
            return served
        release(served)
        return None

    try:
        return await asyncio.to_thread(look_up)
    except asyncio.CancelledError:
        abandoned.set()
        raise
