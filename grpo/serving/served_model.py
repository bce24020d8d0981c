"""Versions as they are loaded, by look-ups that run on threads, and released."""

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
from grpo.serving.engine import ProcessPolicy
from grpo.user_failures import is_exception, user_code


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A version as it is loaded: policy, agent, and the settings that its gates have measured it with."""

    model: str
    """Name of the registered model, by which clients ask for it."""
    version: str
    """Name and version, `support-desk/3`."""
    policy: Policy
    agent: MultiTurnAgent
    renderer: RendererSettings | None = None
    """Renderer of the user's own; None renders with the chat template."""
    system_prompt: str = ""
    """System prompt of the environment, before a system message of the client."""
    tools: tuple[Tool, ...] = ()
    """Tools of its environment, which a client that names no tools is asked to run."""
    temperature: float = 1.0
    max_new_tokens: int = 512
    max_context: int | None = None
    """Tokens of a conversation at most; None is the policy's context."""
    registered: float | None = None
    """Unix time of its registration; None for a model outside of the registry."""


@runtime_checkable
class WatchesAlias(Protocol):
    """Look-up of the version to serve that notices an alias which was moved by hand."""

    moved: str | None
    """Sentence about an alias that names another version than was promoted; None if it does not."""


@runtime_checkable
class LoadsVersions(Protocol):
    """Look-up of the version to serve that can load another version of its model."""

    def load_version(self, version: str) -> ServedModel:
        """A version by its name, `support-desk/3`; raises `GRPOError` for one of another model."""
        ...


def release(served: ServedModel) -> None:
    """End the process of a model that is not served, or not any more."""
    if isinstance(served.policy, ProcessPolicy):
        served.policy.close()


class FirstVersionError(PolicyError):
    """The first version of a server cannot be loaded, by an exception that is not one of this project."""


async def load(next_version: Callable[[str], ServedModel | None], current: str) -> ServedModel | None:
    """Call `next_version` on a thread; what it loads after this call was cancelled is released."""
    abandoned = threading.Event()

    def look_up() -> ServedModel | None:
        with user_code("the version's code", error=PolicyError, passes=is_exception):  # which is imported here
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
