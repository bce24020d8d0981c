"""Checks before a run, including its servers. Every command and every flow calls these checks and no other list.

`grpo.preflight` has the checks of a config. The checks here need Prefect, the servers of this machine, or MLflow.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from grpo import preflight
from grpo.config.pipeline import PipelineConfig
from grpo.config.retraining import RetrainConfig
from grpo.config.tuning import TuneConfig
from grpo.errors import ConfigError, DataError, GRPOError, StorageError
from grpo.preflight import Check, Facts, Fault, Purpose, models, registered
from grpo.preflight.data import source_functions
from grpo.preflight.table import SERVERS, STORE, Depth
from grpo.scenarios.sources import SOURCES, content_hash
from grpo.scenarios.split import validation_split
from grpo.storage.home import home
from grpo_local import checks
from grpo_local.checks import CheckResult
from grpo_tasks.model_addresses import REGISTERED

_REPORT = "the folder of the report can be made"
_REPORTED: frozenset[Purpose] = frozenset({"train", "evaluate"})
"""Purposes with a result in the folder of the config's name. A study and its trials have the folder of the study."""
_ANSWER_S = 5.0
"""Time that the scheduler of a Dask cluster has to take a connection."""


def check(
    config: PipelineConfig,
    *,
    purpose: Purpose = "train",
    depth: Depth = "all",
    whole: bool = False,
    own: tuple[Check, ...] = (),
) -> PipelineConfig:
    """Raise one error with all faults, or return the config as the run uses it. See `grpo.preflight.check`.

    `own` are checks of settings that are not in this config.
    """
    return preflight.check(
        config, purpose=purpose, depth=depth, whole=whole, registry=_existing_registry, before=(*MACHINE, *own)
    )


def check_evaluation(config: PipelineConfig, model: str | None, *, whole: bool, depth: Depth = "all") -> None:
    """Check an evaluation of the model at an address. None is the champion, which only the registry knows.

    If all checks are made, the files of a model in the registry are checked as well.
    """
    checks_of_model: tuple[Check, ...] = ()
    if model is not None and (depth == "all" or not model.startswith(REGISTERED)):
        config = config.model_copy(update={"policy": config.policy.model_copy(update={"model": model})})
        checks_of_model = (
            Check(name="model files are whole", test=models.files),
            Check(name="rollout servers compute the model's dtype", test=registered.evaluated, imports=True),
        )
    preflight.check(
        config,
        purpose="evaluate",
        depth=depth,
        whole=whole,
        registry=_existing_registry,
        before=(*MACHINE, *checks_of_model),
    )


def faults(config: PipelineConfig) -> tuple[Fault, ...]:
    """All faults of a training, for `grpo doctor`."""
    return preflight.find_faults(config, registry=_existing_registry, before=MACHINE).faults


def check_tuning(config: TuneConfig, *, depth: Depth = "all") -> TuneConfig:
    """Check a study: its base config, and that its metric can be had. Returns it with the base as trials use it."""
    own = (
        Check(name=_REPORT, test=lambda facts: _report(config.name)),
        Check(name="the metric of the study can be had", test=lambda facts: _study_metric(config, facts)),
        Check(name="both splits of the study hold scenarios", test=lambda facts: _study_split(config, facts)),
    )
    return config.model_copy(update={"base": check(config.base, purpose="trial", depth=depth, own=own)})


def check_retraining(config: RetrainConfig, *, depth: Depth = "all") -> PipelineConfig:
    """Check a retraining and the run that it repeats, and return that run's config as it will be used."""
    own = (
        Check(name=_REPORT, test=lambda facts: _report(config.name)),
        Check(name="conversations can be read", test=lambda facts: _conversations(config)),
    )
    return check(config.load_pipeline(), depth=depth, own=own)


def _study_metric(config: TuneConfig, facts: Facts) -> Iterator[Exception]:
    scenarios = facts.playable()
    if config.metric == "success" and scenarios and not any(map(facts.can_verify, scenarios)):
        yield ConfigError(
            f"metric success: environment {config.base.environment.kind} verifies no outcome of {len(scenarios)} "
            "scenarios, so that no trial would have a result. Set metric to reward"
        )


def _study_split(config: TuneConfig, facts: Facts) -> Iterator[Exception]:
    """Split the training scenarios as the study does, if all scenarios are known."""
    sample, parts = facts.sample(), facts.split()
    if sample is None or sample.table is None or parts is None:
        return
    try:
        validation_split(sample.table, parts, share=config.validation_fraction)
    except DataError as error:
        yield DataError(str(error).replace(str(sample.table), "scenarios.sources"))


def _report(name: str) -> Iterator[Exception]:
    """Refuse the name of a run if its report cannot be written after all the work."""
    folder = home() / name
    if folder.exists() and not folder.is_dir():
        yield StorageError(
            f"the report of the run goes into the folder {folder}, but that is a file. Remove the file, or change name"
        )


def _conversations(config: RetrainConfig) -> Iterator[Exception]:
    """Errors of conversation sources that cannot be read. A log may be empty, because it may be new."""
    yield from source_functions(config.conversations)
    for source in (part for part in config.conversations if not SOURCES[type(part)].may_be_empty):
        try:
            content_hash([source])
        except GRPOError as error:
            yield error


def _existing_registry():  # type: ignore[no-untyped-def] # the registry imports MLflow when it is opened
    from grpo_tasks.registry import existing_registry

    return existing_registry()


def _problems(results: Iterator[CheckResult] | list[CheckResult]) -> Iterator[Exception]:
    return (result.error() for result in results if result.state == "problem")


def _home(facts: Facts) -> Iterator[Exception]:
    """Check that home and artifact store can be written."""
    yield from _problems([checks.check_home(home()), checks.check_store(facts.given.store)])


def _servers(facts: Facts) -> Iterator[Exception]:
    """Check that servers that the environment names answer, and accept the login."""
    yield from _problems(checks.check_named_servers())


def _task_runner(facts: Facts) -> Iterator[Exception]:
    """Check that the package of the task runner is installed, and that the scheduler of a running cluster answers."""
    if facts.given.rollout.runner != "threads":  # threads need no package, and the import of Prefect takes a second
        from grpo_tasks.execution.task_runners import shard_runner

        shard_runner(facts.given.rollout)
    if (address := facts.given.rollout.dask_address) is not None:
        host, _, port = address.partition("://")[2].rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
        except OSError as error:
            yield ConfigError(
                f"rollout.dask_address {address} does not answer ({error.strerror or error}). Start the scheduler, or "
                "leave dask_address out, so that the run starts its own cluster"
            )


def _gpu_stages(facts: Facts) -> Iterator[Exception]:
    """Check that the deployment of the GPU stages exists, and that its workers can reach the store."""
    sent = facts.given.compute.gpu_stages
    if sent is None or "PREFECT_API_URL" not in os.environ:
        return
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            client.read_deployment_by_name(sent.deployment)
        except ObjectNotFound:
            yield ConfigError(
                f"compute.gpu_stages.deployment {sent.deployment} is not a deployment of {client.api_url}. Make it "
                "with `grpo deploy`, or leave compute.gpu_stages out"
            )


MACHINE: tuple[Check, ...] = (
    Check(name=STORE, test=_home),
    Check(name=_REPORT, test=lambda facts: _report(facts.given.name), purposes=_REPORTED),
    Check(name=SERVERS, test=_servers),
    Check(name="the task runner is installed", test=_task_runner, imports=True),
    Check(name="the deployment of GPU stages exists", test=_gpu_stages, imports=True),
)
"""Checks of this machine and its servers."""
