"""The cache identity of a stage: its name, its inputs, the code that computes it, and what a user brings in."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel

from grpo.artifacts import Artifact
from grpo.identity.code import code_digest, external_digests


def identity(value: Any) -> Any:
    """The part of a stage's input that its result depends on: an artifact is its digest, wherever it lies."""
    if isinstance(value, Artifact):
        return value.sha256
    if isinstance(value, BaseModel):
        return {name: identity(item) for name, item in value}
    if isinstance(value, (list, tuple)):
        return [identity(item) for item in value]
    if isinstance(value, dict):
        return {str(name): identity(item) for name, item in value.items()}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"{type(value).__name__} cannot be part of a cache identity; pass numbers, texts or artifacts")


def stage_key(name: str, inputs: dict[str, Any]) -> str:
    """Cache identity: stage, its inputs without the address of the store, our code, and the user's code and files."""
    relevant = {key: identity(value) for key, value in inputs.items() if key != "store"}
    text = json.dumps([name, code_digest(), relevant, external_digests(inputs.values())], sort_keys=True)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()}"
