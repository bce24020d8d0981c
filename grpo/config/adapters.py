"""Low-rank adapters instead of all weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from grpo.config.base import Settings


class LoraSettings(Settings):
    """LoRA (arXiv 2106.09685) by peft's names; the base weights stay as they are.

    Checkpoints hold the adapters alone; the model that is registered has them merged in.
    """

    r: int = Field(default=16, ge=1)
    """Rank of each adapter."""
    lora_alpha: int = Field(default=32, ge=1)
    """An adapter's output is scaled by lora_alpha / r."""
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Names of the layers that get an adapter, or all linear ones but the head."""
