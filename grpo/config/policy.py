"""Which model is trained."""

from __future__ import annotations

from typing import Literal

from grpo.config.base import Settings


class PolicySettings(Settings):
    """The model that is trained."""

    model: str
    """Folder with config.json, safetensors weights and a tokenizer, or a model in an object store
    (`s3://bucket/store/model/3fa1…#sha256`); addresses of other kinds cannot be trained."""
    chat_template: str | None = None
    """Jinja chat template, for models that come without one."""
    quantization: Literal["int8", "nf4"] | None = None
    """Store the base in few bits, on a GPU and under training.lora; not tried on hardware by the tests."""
