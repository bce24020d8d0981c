"""Flow of one remote stage. `grpo_tasks.execution.remote` sends it, and the workers of a GPU pool run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from grpo.artifacts import Artifact, ArtifactStore
from grpo.errors import ConfigError, GRPOError
from grpo.identity.code import source_digest
from grpo.identity.code_transfer import check_modules, receive_code
from grpo.interrupts import stoppable
from grpo_flows.steps.stalls import ended_without_progress
from grpo_tasks.evaluate import evaluate
from grpo_tasks.execution.remote_messages import decode, error_message, write_result_artifact
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.retries import TRANSIENT
from grpo_tasks.execution.stage import Stage
from grpo_tasks.rollout import rollout
from grpo_tasks.train import train

STAGES: dict[str, Stage[..., Any]] = {"rollout": rollout, "train": train, "evaluate": evaluate}


@flow(name="stage", persist_result=False)
def run_stage(
    stage: str,
    inputs: dict[str, Any],
    sources: str,
    code: dict[str, Any] | None = None,
    modules: dict[str, str] | None = None,
    no_progress_s: float = 3600.0,
) -> State[Any]:
    """Run one stage here, or take it from this machine's cache.

    If SIGTERM ends the process, e.g. because its machine is drained, the flow run crashes instead of failing, so that
    the run that sent the stage sends it again. The same happens if the stage makes no progress.

    Args:
        stage: Its name.
        inputs: Its inputs, as JSON.
        sources: Digest of the sender's code, which must be the same on this machine.
        code: Artifact with the sources of the user's own modules, which are imported here.
        modules: Digests of these modules and versions of the packages that they import, which must be the same here.
        no_progress_s: Longest time in which the stage reports no progress.

    """
    try:
        if sources != source_digest():
            raise ConfigError(
                f"this worker runs grpo sources {source_digest()}, but the run that sent stage {stage} has {sources}. "
                "Install the same version on both"
            )
        with stoppable(), ended_without_progress(stage, no_progress_s):
            return Completed(message=run_received(STAGES[stage], inputs, code, modules).model_dump_json())
    except (GRPOError, *TRANSIENT) as error:
        return Failed(message=error_message(error))


def run_received(
    stage: Stage[..., StageResult],
    inputs: dict[str, Any],
    code: dict[str, Any] | None = None,
    modules: dict[str, str] | None = None,
) -> Artifact:
    """Run a stage on inputs from another machine, and leave its result in the store."""
    given = decode(stage, inputs)
    store = ArtifactStore(given["store"])
    if store.is_local and not Path(store.uri).is_dir():
        raise ConfigError(
            f"this worker has no folder {store.uri}, the store of the run that sent stage {stage.name}. Set `store` to "
            "an address that both machines reach, for example s3://bucket/artifacts"
        )
    if code is not None:
        receive_code(store, Artifact.model_validate(code))
    check_modules(given, modules or {})
    return write_result_artifact(store, stage(**given))
