"""A policy that says what is written down: a double for tests, and a baseline for an evaluation.

replies  [a, b]              every episode says a, b, a, b …
replies  [[a, b], [c]]       a sample with an even seed says a, b, a … , one with an odd seed c, c …

It cannot tell how likely its tokens were, so nothing can be trained on what it says.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from grpo.config.loading import read_yaml
from grpo.errors import ConfigError, PolicyError
from grpo.messages import Message
from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.renderers.chat_template import Renderer


class ScriptedPolicy:
    """Says the replies of a script in turn and begins again at its end; of several scripts the seed picks one."""

    max_context = sys.maxsize
    """The script reads nothing, so nothing is too long for it."""

    def __init__(self, replies: Sequence[str] | Sequence[Sequence[str]]) -> None:
        self._scripts = _scripts(list(replies), "replies")
        self.hash = hashlib.sha256(json.dumps(self._scripts).encode()).hexdigest()[:16]

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[ScriptedSampler]:
        """See `Policy.sampler`."""
        yield ScriptedSampler(self._scripts, renderer)


class ScriptedSampler:
    """Serves any number of conversations; the turns of a session count up."""

    def __init__(self, scripts: Sequence[Sequence[str]], renderer: Renderer) -> None:
        self.scripts = scripts
        self.renderer = renderer

    def open(self) -> ScriptedSession:
        """See `Sampler.open`."""
        return ScriptedSession(self)


class ScriptedSession:
    """One conversation, at some line of its script."""

    def __init__(self, sampler: ScriptedSampler) -> None:
        self._sampler = sampler
        self._turns = 0

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Say the next reply, cut off at `max_new_tokens`."""
        script = self._sampler.scripts[sampling.seed % len(self._sampler.scripts)]
        reply = Message(role="assistant", content=script[self._turns % len(script)])
        self._turns += 1
        ids = self._sampler.renderer.encode_reply(reply)
        said = ids[: sampling.max_new_tokens]
        return Generation(token_ids=said, logprobs=None, stop="stop" if len(said) == len(ids) else "length")

    def close(self) -> None:
        """Nothing is held."""


def read_replies(path: Path) -> list[Any]:
    """The replies in a YAML file: a list of texts, or a list of such lists.

    Raises `PolicyError` for a file that is missing, larger than 1 MiB, not YAML, or holds anything else.
    """
    if path.suffix not in (".yaml", ".yml") or ".." in path.parts:
        raise PolicyError(f"replies at {str(path)!r}: name a .yaml file, by a path without '..'")
    try:
        replies = read_yaml(path)
    except (OSError, ValueError, ConfigError) as error:
        raise PolicyError(f"no replies can be read from {path}: {error}") from error
    return _scripts(replies, str(path))


def _scripts(replies: Any, place: str) -> list[list[str]]:
    """Replies as a list of scripts, none of them empty."""
    if isinstance(replies, list) and replies and all(isinstance(reply, str) for reply in replies):
        return [replies]
    if isinstance(replies, list) and replies and all(_is_script(script) for script in replies):
        return [list(script) for script in replies]
    raise PolicyError(
        f"{place}: expected a list of texts, or a list of such lists, none empty; got {type(replies).__name__}"
    )


def _is_script(script: Any) -> bool:
    return isinstance(script, (list, tuple)) and bool(script) and all(isinstance(reply, str) for reply in script)
