"""One stage of a run that is going on elsewhere, as a flow of its own: what a GPU pool's workers run.

The inputs come as JSON, the result goes back as an artifact in the store, whose address is the message of the run's
last state. An error of this package goes back as its type and text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from prefect import Task, flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import BaseModel, ConfigDict, create_model

from flows.ledger import Ledger
from grpo.artifacts import Artifact, ArtifactStore
from grpo.errors import ConfigError, GRPOError
from grpo.identity.code import source_digest
from tasks.evaluate import evaluate
from tasks.results import StageResult
from tasks.rollout import rollout
from tasks.train import train

R = TypeVar("R", bound=StageResult)

STAGES: dict[str, Task[..., Any]] = {stage.name: stage for stage in (rollout, train, evaluate)}


@flow(name="stage", persist_result=False)
def run_stage(stage: str, inputs: dict[str, Any], sources: str) -> State[Any]:
    """Run one stage here, from this machine's cache if it is there.

    Args:
        stage: Its name.
        inputs: What it takes, as JSON.
        sources: Digest of the sender's code, which must be that of this machine.

    """
    try:
        if sources != source_digest():
            raise ConfigError(
                f"this worker runs grpo sources {source_digest()}, the run that sent stage {stage} {sources}; "
                "install the same version on both"
            )
        return Completed(message=work(STAGES[stage], inputs).model_dump_json())
    except GRPOError as error:
        return Failed(message=f"{type(error).__name__}: {error}")


def work(stage: Task[..., StageResult], inputs: dict[str, Any]) -> Artifact:
    """Do the stage, and leave its result in the store."""
    given = decode(stage, inputs)
    store = ArtifactStore(given["store"])
    if store.is_local and not Path(store.uri).is_dir():
        raise ConfigError(
            f"this worker has no folder {store.uri}, the store of the run that sent stage {stage.name}; set `store` to "
            "an address that both machines reach, for example s3://bucket/artifacts"
        )
    result = Ledger(ThreadPoolTaskRunner()).run(stage, **given)
    return store.put_file("result", ".json", lambda path: path.write_text(result.model_dump_json()) and None)


def encode(stage: Task[..., Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """A stage's inputs as JSON."""
    return _inputs(stage)(**inputs).model_dump(mode="json")


def decode(stage: Task[..., Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """A stage's inputs from JSON, of the types that its parameters have."""
    return dict(_inputs(stage).model_validate(inputs))


def read_result(stage: Task[..., R], message: str, store: str) -> R:
    """What a run of `run_stage` left in the store."""
    path = ArtifactStore(store).path(Artifact.model_validate_json(message))
    kind: type[R] = get_type_hints(stage.fn)["return"]
    return kind.model_validate_json(path.read_bytes())


def read_error(message: str) -> GRPOError | None:
    """The error of this package that a run of `run_stage` ended with, if it was one."""
    name, separator, text = message.partition(": ")
    kinds = {kind.__name__: kind for kind in _kinds(GRPOError)}
    return kinds[name](text) if separator and name in kinds else None


def _kinds(kind: type[GRPOError]) -> list[type[GRPOError]]:
    return [kind, *(further for child in kind.__subclasses__() for further in _kinds(child))]


def _inputs(stage: Task[..., Any]) -> type[BaseModel]:
    """A model of a stage's parameters."""
    hints = get_type_hints(stage.fn, include_extras=True)
    fields: dict[str, Any] = {name: (hint, ...) for name, hint in hints.items() if name != "return"}
    return create_model(f"{stage.name}_inputs", __config__=ConfigDict(extra="forbid"), **fields)
