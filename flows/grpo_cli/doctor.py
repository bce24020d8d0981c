"""Checks of `grpo doctor`: packages, machine, servers, stores, and what a config needs before its run."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from grpo.config.pipeline import PipelineConfig
from grpo.errors import DISTRIBUTION, GRPOError, install_command
from grpo.learner.estimates.servers_memory import free_memory
from grpo.storage.files import nearest_existing
from grpo_cli.command import QUICKSTART
from grpo_cli.display import model_line
from grpo_local.certificates import check_serving
from grpo_local.checks import (
    CheckResult,
    DoctorReport,
    State,
    check_files,
    check_folders,
    check_records,
    check_servers,
    check_store,
    protocol_known,
)
from grpo_local.run_checks import check_runs

_DEVELOPMENT = ("dev",)
"""Extras for work on the project itself."""
_GIB = 2**30
_LITTLE_MEMORY, _LITTLE_DISK, _NO_DISK = 2 * _GIB, 5 * _GIB, _GIB // 2


def run_checks(home: Path, store: str, config: PipelineConfig | None = None) -> DoctorReport:
    """Run all checks, and the checks of a config if one is given. They leave nothing behind, and show no password."""
    checks = (
        *(_check_python(), *_check_packages(), *_check_extras(), *_check_gpus(), _check_memory()),
        *(
            *_check_disks(home, store),
            *check_records(home),
            *check_files(home),
            *check_folders(home),
            check_store(store),
            *check_servers(home),
            *check_runs(home),
            *check_serving(home),
        ),
        *(*_check_backends(), *check_shipped_files(), *_check_config(config)),
    )
    return DoctorReport(checks=checks)


def _check_config(config: PipelineConfig | None) -> Iterator[CheckResult]:
    """Every fault for which a run of this config would be refused."""
    if config is None:
        return
    from grpo.identity.cache_identity import pin_models
    from grpo.policy.weights.sources import model_plan
    from grpo.preflight import Facts
    from grpo_local.preflight import faults

    errors = [fault.error for fault in faults(config)]
    try:
        if not errors:
            plan = model_plan(pin_models(config).policy.model)
            path = "unknown until the weights are fetched" if plan.missing else _forward_path(config)
            yield CheckResult(area="config", name="policy.model", state="ok", detail=model_line(plan))
            yield CheckResult(area="config", name="forward path", state="ok", detail=path)
            with Facts(config) as facts:
                chat_format = str(facts.renderer().chat_format)
            yield CheckResult(area="config", name="chat format", state="ok", detail=chat_format)
            yield CheckResult(area="config", name="context", state="ok", detail=_context(config))
            yield CheckResult(area="config", name=config.name, state="ok", detail="a run of this config can start")
    except (GRPOError, ConnectionError, TimeoutError) as failure:
        errors.append(failure)
    for error in errors:
        detail, _, remedy = str(error).partition(". ")
        yield CheckResult(area="config", name=config.name, state="problem", detail=detail, remedy=remedy)


def _forward_path(config: PipelineConfig) -> str:
    """Forward path of the model and its errors against a plain forward pass. Loads the weights."""
    from grpo.policy.catalog import load_weights

    policy = config.policy
    loaded = load_weights(policy.model, chat_template=policy.chat_template, quantization=policy.quantization)
    return str(loaded.path_check)


def _context(config: PipelineConfig) -> str:
    """Tokens that the model reads, and why they are fewer than its config states."""
    from grpo.policy.context import described_context
    from grpo.policy.weights.sources import model_description

    with model_description(config.policy.model) as described:
        return described_context(described.config)


def _check_python() -> CheckResult:
    """Compare the interpreter with the version that the package requires."""
    version, required = platform.python_version(), importlib.metadata.metadata(DISTRIBUTION)["Requires-Python"]
    fits = SpecifierSet(required).contains(version)
    state: State = "ok" if fits else "problem"
    remedy = "" if fits else f"Install Python {required}"
    return CheckResult(area="python", name="python", state=state, detail=version, remedy=remedy)


def _check_packages() -> Iterator[CheckResult]:
    """Compare every required package with the bounds in the installed metadata."""
    for requirement in _requirements():
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield _check_package(requirement, area="packages", missing="problem", extra=None)


def _check_extras() -> Iterator[CheckResult]:
    """Check the packages that only some settings need."""
    for extra in importlib.metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []:
        if extra in _DEVELOPMENT:
            continue
        for requirement in _requirements():
            marker = requirement.marker
            if marker is not None and not marker.evaluate({"extra": ""}) and marker.evaluate({"extra": extra}):
                yield _check_package(requirement, area="extras", missing="absent", extra=extra)


def _requirements() -> list[Requirement]:
    return [Requirement(text) for text in importlib.metadata.requires(DISTRIBUTION) or []]


def _check_package(requirement: Requirement, *, area: str, missing: State, extra: str | None) -> CheckResult:
    remedy = install_command(extra) if extra else f"pip install '{requirement.name}{requirement.specifier}'"
    name = f"{requirement.name} ({extra})" if extra else requirement.name
    if (version := _installed_version(requirement.name)) is None:
        return CheckResult(area=area, name=name, state=missing, detail="not installed", remedy=remedy)
    if requirement.specifier.contains(version, prereleases=True):
        return CheckResult(area=area, name=name, state="ok", detail=version)
    detail = f"{version} is installed, and {requirement.specifier} is needed"
    return CheckResult(area=area, name=name, state="problem", detail=detail, remedy=remedy)


def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _import_installed(package: str) -> Any:
    """The module of an installed package, else None. The checks of packages report a missing one."""
    return importlib.import_module(package) if _installed_version(package) else None


def _check_gpus() -> Iterator[CheckResult]:
    """GPUs that PyTorch can use."""
    torch = _import_installed("torch")
    if torch is None:
        return
    if not torch.cuda.is_available():
        detail = "PyTorch sees none, so that models run on the CPU"
        yield CheckResult(area="machine", name="gpu", state="absent", detail=detail)
        return
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        detail = f"{torch.cuda.get_device_name(index)}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
        yield CheckResult(area="machine", name=f"gpu {index}", state="ok", detail=detail)


def _check_memory() -> CheckResult:
    """Free memory of the machine, or of its container."""
    free, total = free_memory()
    detail = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free, {os.cpu_count()} cores"
    if free >= _LITTLE_MEMORY:
        return CheckResult(area="machine", name="memory", state="ok", detail=detail)
    remedy = "End other programs, or lower training.microbatch_tokens. --dry-run estimates a run's memory"
    return CheckResult(area="machine", name="memory", state="warning", detail=detail, remedy=remedy)


def _check_disks(home: Path, store: str) -> Iterator[CheckResult]:
    """Free disk space for records and artifacts."""
    folders = {"home": home}
    file_system, root = fsspec.core.url_to_fs(store) if protocol_known(store) else (None, "")
    if isinstance(file_system, LocalFileSystem):
        folders["store"] = Path(root)
    for name, folder in folders.items():
        free = shutil.disk_usage(nearest_existing(folder)).free
        state: State = "problem" if free < _NO_DISK else "warning" if free < _LITTLE_DISK else "ok"
        remedy = (
            "" if state == "ok" else f"Free space, or set {'GRPO_HOME' if name == 'home' else 'store'} to a larger disk"
        )
        detail = f"{free / _GIB:.1f} GiB free"
        yield CheckResult(area="machine", name=f"disk of {name}", state=state, detail=detail, remedy=remedy)


def _check_backends() -> Iterator[CheckResult]:
    """Settings of a config that need a package or a GPU."""
    torch = _import_installed("torch")
    gpu = torch is not None and torch.cuda.is_available()
    vllm = gpu or "cpu" in (_installed_version("vllm") or "")
    distributed = torch is not None and torch.distributed.is_available()
    table: tuple[tuple[str, tuple[str, ...], bool, str], ...] = (
        ("rollout.backend: transformers", ("torch", "transformers"), True, ""),
        ("rollout.backend: vllm", ("vllm",), vllm, "this build of vLLM needs a GPU"),
        ("training.engine: trl", ("trl",), True, ""),
        ("training.lora", ("peft",), True, ""),
        ("training.processes", ("torch",), distributed, "this PyTorch was built without torch.distributed"),
        ("policy.quantization", ("bitsandbytes",), gpu, "quantized weights need a GPU"),
        ("rollout.runner: dask", ("prefect-dask",), True, ""),
        ("rollout.runner: ray", ("prefect-ray",), True, ""),
        ("models behind openai+https://", ("openai",), True, ""),
        ("store: s3://", ("s3fs",), True, ""),
    )
    for name, packages, possible, reason in table:
        missing = [package for package in packages if not _installed_version(package)]
        state: State = "ok" if possible and not missing else "absent"
        detail = f"{', '.join(missing)} not installed" if missing else "yes" if possible else reason
        yield CheckResult(area="capabilities", name=name, state=state, detail=detail)


def check_shipped_files(files: Mapping[str, Path] | None = None) -> Iterator[CheckResult]:
    """Files that the shipped configs and rewards read."""
    for name, path in (files or _shipped_files()).items():
        if path.exists():
            yield CheckResult(area="shipped files", name=name, state="ok", detail=str(path))
        else:
            remedy = "Install the package again"
            detail = f"{path} does not exist"
            yield CheckResult(area="shipped files", name=name, state="problem", detail=detail, remedy=remedy)


def _shipped_files() -> dict[str, Path]:
    """A file of each part, by its name."""
    from grpo.rewards.judge.rubrics import RUBRICS
    from grpo.rewards.learned.safety import SHIPPED
    from grpo.storage.shipped import shipped_folder

    return {
        "configs": QUICKSTART,
        "scenarios": shipped_folder() / "scenarios" / "support_desk.jsonl",
        "model": shipped_folder() / "models" / "desk_clerk" / "config.json",
        "rubrics of the judge": RUBRICS / "customer_service.yaml",
        "network of the safety reward": SHIPPED,
    }
