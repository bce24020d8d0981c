"""Messages of a remote stage: its inputs as JSON, its result as an artifact, and its error as type and text.

The sender (`remote`) and the flow that runs the stage (`grpo_flows.stage`) both use this module.
"""

from __future__ import annotations

import inspect
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from grpo.artifacts import Artifact, ArtifactStore
from grpo.errors import GRPOError
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.retries import TRANSIENT
from grpo_tasks.execution.stage import Stage

R = TypeVar("R", bound=StageResult)


def encode(stage: Stage[..., Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """A stage's inputs as JSON."""
    return _inputs(stage)(**inputs).model_dump(mode="json")


def decode(stage: Stage[..., Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """A stage's inputs from JSON, converted to the types of its parameters."""
    return dict(_inputs(stage).model_validate(inputs))


def write_result_artifact(store: ArtifactStore, result: StageResult) -> Artifact:
    """Store a result, for the machine that sent the stage."""
    with store.new_file("result", ".json") as new:
        new.path.write_text(result.model_dump_json(), encoding="utf-8")
    return new.artifact


def read_result_artifact(stage: Stage[..., R], message: str, store: str) -> R:
    """The result that a remote stage left in the store. `message` is the message of its last state."""
    path = ArtifactStore(store).path(Artifact.model_validate_json(message))
    return stage.result_type.model_validate_json(path.read_bytes())


def error_message(error: Exception) -> str:
    """Message of the last state of a stage that ended with this error.

    If a retry can fix it, the message names `TimeoutError` or `ConnectionError`, otherwise the type of the error.
    """
    kind = "TimeoutError" if isinstance(error, TimeoutError) else "ConnectionError"
    return f"{kind if isinstance(error, TRANSIENT) else type(error).__name__}: {error}"


def read_error(message: str) -> Exception | None:
    """The error that a remote stage ended with, if it was a `GRPOError` or one that a retry can fix."""
    name, separator, text = message.partition(": ")
    kinds = {kind.__name__: kind for kind in (*_kinds(GRPOError), ConnectionError, TimeoutError)}
    return kinds[name](text) if separator and name in kinds else None


def _kinds(kind: type[Exception]) -> list[type[Exception]]:
    return [kind, *(further for child in kind.__subclasses__() for further in _kinds(child))]


def _inputs(stage: Stage[..., Any]) -> type[BaseModel]:
    """A model of a stage's parameters."""
    hints = get_type_hints(inspect.unwrap(stage.function), include_extras=True)
    fields: dict[str, Any] = {name: (hint, ...) for name, hint in hints.items() if name != "return"}
    return create_model(f"{stage.name}_inputs", __config__=ConfigDict(extra="forbid"), **fields)
