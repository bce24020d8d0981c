"""Scripted policy: a double for tests, and a baseline for an evaluation.

replies  [a, b]              every episode replies a, b, a, b …
replies  [[a, b], [c]]       a sample with an even seed replies a, b, a … , one with an odd seed c, c …

Its tokens have no log-probabilities, so its episodes cannot be trained on.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from grpo.config.loading import read_yaml
from grpo.errors import ConfigError, PolicyError
from grpo.policy.policy import Generation, Prompt, Sampler, Sampling, SessionFactory
from grpo.renderers.chat_template import Renderer


class ScriptedPolicy:
    """Policy that cycles through the replies of a script. If there are several scripts, the seed selects one."""

    max_context = sys.maxsize
    """Unlimited, because a script reads no prompt."""

    def __init__(self, replies: Sequence[str] | Sequence[Sequence[str]]) -> None:
        self._scripts = _scripts(list(replies), "replies")
        self.hash = hashlib.sha256(json.dumps(self._scripts).encode()).hexdigest()[:16]

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[Sampler]:
        """See `Policy.sampler`."""
        yield SessionFactory(partial(ScriptedSession, self._scripts, renderer))


class ScriptedSession:
    """One conversation and its position in the script."""

    def __init__(self, scripts: Sequence[Sequence[str]], renderer: Renderer) -> None:
        self._scripts = scripts
        self._renderer = renderer
        self._turns = 0

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Return the next reply, truncated at `max_new_tokens`."""
        sampling.refuse_unread("a script")
        script = self._scripts[sampling.seed % len(self._scripts)]
        reply = self._renderer.parse_text(script[self._turns % len(script)])
        self._turns += 1
        ids = self._renderer.encode_reply(reply, prompt.messages)
        truncated = ids[: sampling.max_new_tokens]
        return Generation(token_ids=truncated, logprobs=None, stop="stop" if len(truncated) == len(ids) else "length")

    def close(self) -> None:
        """No resource to release."""


def read_replies(path: Path) -> list[Any]:
    """Read replies from a YAML file: a list of strings, or a list of such lists.

    Raises `PolicyError` if the file is missing, larger than 1 MiB, not YAML, or has another shape.
    """
    if path.suffix not in (".yaml", ".yml") or ".." in path.parts:
        raise PolicyError(f"replies at {str(path)!r}: name a .yaml file, by a path without '..'")
    try:
        replies = read_yaml(path)
    except (OSError, ValueError, ConfigError) as error:
        raise PolicyError(f"no replies can be read from {path}: {error}") from error
    return _scripts(replies, str(path))


def _scripts(replies: Any, place: str) -> list[list[str]]:
    """Normalize replies to a list of scripts and check that none is empty."""
    if isinstance(replies, list) and replies and all(isinstance(reply, str) for reply in replies):
        return [replies]
    if isinstance(replies, list) and replies and all(_is_script(script) for script in replies):
        return [list(script) for script in replies]
    raise PolicyError(
        f"{place}: expected a list of texts, or a list of such lists, none empty, got {type(replies).__name__}"
    )


def _is_script(script: Any) -> bool:
    return isinstance(script, (list, tuple)) and bool(script) and all(isinstance(reply, str) for reply in script)
