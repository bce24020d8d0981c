"""Which model is trained."""

from __future__ import annotations

from grpo.config.base import Settings


class PolicySettings(Settings):
    """The model that is trained."""

    model: str
    """Folder with config.json, safetensors weights and a tokenizer."""
    chat_template: str | None = None
    """Jinja chat template, for models that come without one."""
