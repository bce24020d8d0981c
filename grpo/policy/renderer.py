"""Renderer of a policy, from its tokenizer's chat template or from the user's own class.

    policy: {model: models/clerk, renderer: {kind: python, object: "shop.renderer:ShopRenderer", options: {date: true}}}

The hash of a custom renderer covers its tokenizer and template, and its class, sources and options, so that a learner
refuses rollouts of another renderer.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.config.renderer import RendererSettings
from grpo.errors import ConfigError
from grpo.messages import Tool
from grpo.renderers.byte_renderer import ByteRenderer
from grpo.renderers.chat_template import Renderer
from grpo.storage.files import file_digest
from grpo.user_objects import check_options, make_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TOOLS = "tools"
_NEEDED = (_TOOLS, "hash", "stop_id", "stop_ids")


def make_renderer(
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    tools: Sequence[Tool] = (),
    settings: RendererSettings | None = None,
) -> Renderer:
    """Make the renderer of a policy's tokenizer. A policy without a tokenizer gets a renderer of bytes.

    Raises `PolicyError` if the template cannot be used, and `ConfigError` if the user's own renderer cannot be made, or
    if one is set although the policy reads messages.
    """
    if settings is None:
        return ByteRenderer(tools=tools) if tokenizer is None else Renderer(tokenizer, tools=tools)
    if tokenizer is None:
        raise ConfigError(
            f"renderer {settings.reference} writes token ids, and this policy reads messages. Leave the renderer out"
        )
    renderer = make_object(settings.reference, settings.options, Renderer, tokenizer, tools=tuple(tools))
    if missing := [name for name in _NEEDED if not hasattr(renderer, name)]:
        raise ConfigError(
            f"{settings.reference} makes a renderer without {missing[0]}. Call super().__init__(tokenizer, tools=tools)"
        )
    renderer.hash = _hash(renderer, settings)
    return renderer


def check_renderer(settings: RendererSettings) -> None:
    """Raise `ConfigError` if the renderer cannot be imported, or if its signature lacks one of the options."""
    check_options(settings.reference, settings.options, Renderer, given=1, named=(_TOOLS,))


def _hash(renderer: Renderer, settings: RendererSettings) -> str:
    """Digest of the renderer's own hash, its name and options, and the files of its classes."""
    parts = [renderer.hash, settings.reference, settings.options]
    parts += [file_digest(path) for path in _sources(type(renderer))]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _sources(kind: type[Renderer]) -> list[Path]:
    own = kind.__mro__[: kind.__mro__.index(Renderer)]
    return [Path(inspect.getfile(part)) for part in own]
