"""Whether this machine can do the work: what is here, what is missing, and how to mend it.

ok        here, and as it should be
absent    not here, and nothing needs it until somebody asks for it
warning   it works, but something will go wrong or slowly
problem   a run would fail
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import fsspec
import httpx
from fsspec.implementations.local import LocalFileSystem
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from pydantic import BaseModel, ConfigDict

from flows.server import prefect_service
from flows.service import port_is_free
from grpo.credentials import masked

State = Literal["ok", "absent", "warning", "problem"]
_GIB = 2**30
_LITTLE_MEMORY, _LITTLE_DISK, _NO_DISK = 2 * _GIB, 5 * _GIB, _GIB // 2
_DEVELOPMENT = ("dev",)
"""Extras that only work on the project itself needs."""


class Finding(BaseModel):
    """What one look showed."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    area: str
    name: str
    state: State
    found: str
    remedy: str = ""
    """What to do, where something is wrong."""


class Diagnosis(BaseModel):
    """Everything that was found; a change of meaning raises the schema version."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal["1"] = "1"
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether a run can start."""
        return all(finding.state != "problem" for finding in self.findings)


def examine(home: Path, store: str) -> Diagnosis:
    """Look at everything; nothing is left behind, and no password is told."""
    areas: tuple[Callable[[], Iterator[Finding]], ...] = (
        python,
        packages,
        extras,
        accelerator,
        memory,
        lambda: disk(home, store),
        lambda: stores(home, store),
        lambda: servers(home),
        capabilities,
    )
    return Diagnosis(findings=tuple(finding for area in areas for finding in area()))


def python() -> Iterator[Finding]:
    """The interpreter against what the package asks for."""
    version, wanted = platform.python_version(), importlib.metadata.metadata("grpo")["Requires-Python"]
    fits = SpecifierSet(wanted).contains(version)
    yield Finding(
        area="python",
        name="python",
        state="ok" if fits else "problem",
        found=version,
        remedy="" if fits else f"install Python {wanted}",
    )


def packages() -> Iterator[Finding]:
    """Every package that is always needed, against the bounds of the installed metadata."""
    for requirement in _requirements():
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield _package(requirement, area="packages", missing="problem", extra=None)


def extras() -> Iterator[Finding]:
    """Packages that only some settings need."""
    names = importlib.metadata.metadata("grpo").get_all("Provides-Extra") or []
    for extra in names:
        if extra in _DEVELOPMENT:
            continue
        for requirement in _requirements():
            marker = requirement.marker
            if marker is not None and not marker.evaluate({"extra": ""}) and marker.evaluate({"extra": extra}):
                yield _package(requirement, area="extras", missing="absent", extra=extra)


def _requirements() -> list[Requirement]:
    return [Requirement(text) for text in importlib.metadata.requires("grpo") or []]


def _package(requirement: Requirement, *, area: str, missing: State, extra: str | None) -> Finding:
    remedy = f"pip install 'grpo[{extra}]'" if extra else f"pip install '{requirement.name}{requirement.specifier}'"
    name = f"{requirement.name} ({extra})" if extra else requirement.name
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(area=area, name=name, state=missing, found="not installed", remedy=remedy)
    if requirement.specifier.contains(version, prereleases=True):
        return Finding(area=area, name=name, state="ok", found=version)
    found = f"{version}, which is not {requirement.specifier}"
    return Finding(area=area, name=name, state="problem", found=found, remedy=remedy)


def accelerator() -> Iterator[Finding]:
    """GPUs that PyTorch can use."""
    torch = _imported("torch")
    if torch is None:
        return
    if not torch.cuda.is_available():
        yield Finding(area="machine", name="gpu", state="absent", found="none that PyTorch sees: models run on the CPU")
        return
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        found = f"{torch.cuda.get_device_name(index)}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
        yield Finding(area="machine", name=f"gpu {index}", state="ok", found=found)


def memory() -> Iterator[Finding]:
    """What is free of this machine's memory, or of what its container may use."""
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    available = [
        int(line.split()[1]) * 1024
        for line in _lines(Path("/proc/meminfo"))
        if line.startswith("MemAvailable:")  # with what the kernel would give back
    ]
    free = available[0] if available else free
    limits = [int(line) for line in _lines(Path("/sys/fs/cgroup/memory.max")) if line.strip().isdigit()]
    used = [int(line) for line in _lines(Path("/sys/fs/cgroup/memory.current")) if line.strip().isdigit()]
    if limits and used and limits[0] < total:
        total, free = limits[0], min(free, limits[0] - used[0])
    little = free < _LITTLE_MEMORY
    yield Finding(
        area="machine",
        name="memory",
        state="warning" if little else "ok",
        found=f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free, {os.cpu_count()} cores",
        remedy="end other programs, or lower training.microbatch_tokens; --dry-run estimates what a run needs"
        if little
        else "",
    )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def disk(home: Path, store: str) -> Iterator[Finding]:
    """Room where runs leave their records and artifacts."""
    places = {"home": home}
    file_system, root = fsspec.core.url_to_fs(store) if _protocol_known(store) else (None, "")
    if isinstance(file_system, LocalFileSystem):
        places["store"] = Path(root)
    for name, place in places.items():
        free = shutil.disk_usage(_nearest(place)).free
        state: State = "problem" if free < _NO_DISK else "warning" if free < _LITTLE_DISK else "ok"
        remedy = "" if state == "ok" else f"free space, or set {'GRPO_HOME' if name == 'home' else 'store'} elsewhere"
        yield Finding(
            area="machine", name=f"disk of {name}", state=state, found=f"{free / _GIB:.1f} GiB free", remedy=remedy
        )


def _nearest(place: Path) -> Path:
    """The place, or the nearest above it that is there."""
    place = place.resolve()
    return next(above for above in (place, *place.parents) if above.exists())


def _protocol_known(store: str) -> bool:
    protocol = fsspec.core.split_protocol(store)[0]
    return protocol is None or protocol in fsspec.available_protocols()


def stores(home: Path, store: str) -> Iterator[Finding]:
    """Whether what runs leave behind can be written: tried where the place is there, and asked for where it is not."""
    yield _folder("home", home, remedy="fix the permissions of the folder, or set GRPO_HOME")
    yield _artifacts(store)
    yield _mlflow_store(os.environ["MLFLOW_TRACKING_URI"])


def _folder(name: str, place: Path, *, remedy: str) -> Finding:
    existing = _nearest(place)
    try:
        if not existing.is_dir():
            raise NotADirectoryError(f"{existing} is no folder")
        if existing == place.resolve():
            with tempfile.TemporaryFile(dir=place):
                pass
        elif not os.access(existing, os.W_OK):
            raise PermissionError(f"{existing} may not be written")
    except OSError as error:
        found = f"{place}: {error.strerror or error}"
        return Finding(area="stores", name=name, state="problem", found=found, remedy=remedy)
    made = "" if existing == place.resolve() else ", made by the first run"
    return Finding(area="stores", name=name, state="ok", found=f"{place}{made}")


def _artifacts(store: str) -> Finding:
    name, remedy = "artifacts", "set `store` to a folder or address that can be written, and its credentials"
    if not _protocol_known(store):
        return Finding(
            area="stores", name=name, state="problem", found=f"no address of a store: {store}", remedy=remedy
        )
    try:
        file_system, root = fsspec.core.url_to_fs(store)
        if isinstance(file_system, LocalFileSystem):
            return _folder(name, Path(root), remedy=remedy)
        probe = f"{root.rstrip('/')}/.probe-{uuid.uuid4().hex}"
        file_system.pipe_file(probe, b"")
        file_system.rm_file(probe)
    except Exception as error:  # noqa: BLE001 - whatever a store raises is what is to be shown
        found = f"{masked(store)}: {type(error).__name__}: {error}"
        return Finding(area="stores", name=name, state="problem", found=found, remedy=remedy)
    return Finding(area="stores", name=name, state="ok", found=masked(store))


def _mlflow_store(uri: str) -> Finding:
    """MLflow's records: a database that can be opened; a server is looked at with the servers."""
    if uri.startswith(("http:", "https:")):
        return Finding(area="stores", name="mlflow", state="ok", found=f"kept by the server at {masked(uri)}")
    if uri.startswith("sqlite:///"):
        path = Path(uri.removeprefix("sqlite:///"))
        if not path.is_file():
            found = f"{path}, made by the first run or by `grpo databases`"
            checked = _folder("mlflow", path.parent, remedy="set MLFLOW_TRACKING_URI")
            return checked if checked.state == "problem" else checked.model_copy(update={"found": found})
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError

    try:
        waits = {"connect_timeout": 5} if uri.startswith("postgres") else {}
        engine = create_engine(uri, connect_args=waits)
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA schema_version" if uri.startswith("sqlite") else "SELECT 1")
        engine.dispose()
    except (SQLAlchemyError, ImportError) as error:
        reason = str(error).splitlines()[0]
        return Finding(
            area="stores",
            name="mlflow",
            state="problem",
            found=f"{masked(uri)}: {masked(reason, known=uri)}",
            remedy="start the database, or set MLFLOW_TRACKING_URI",
        )
    return Finding(area="stores", name="mlflow", state="ok", found=masked(uri))


def servers(home: Path) -> Iterator[Finding]:
    """The servers that the environment names, or the ports that those of this machine would take."""
    url = os.environ.get("PREFECT_API_URL")
    host, port = os.environ["PREFECT_SERVER_API_HOST"], int(os.environ["PREFECT_SERVER_API_PORT"])
    if url is not None:
        yield _server("prefect", url, f"{url}/health", f"{url}/admin/version", setting="PREFECT_API_URL")
    elif (running := prefect_service(home).address()) is not None:
        yield _server("prefect", running, f"{running}/health", f"{running}/admin/version", setting="PREFECT_API_URL")
    else:
        yield _port("prefect port", host, port, setting="PREFECT_SERVER_API_PORT", taken="problem")
    tracking = os.environ["MLFLOW_TRACKING_URI"].rstrip("/")
    if tracking.startswith(("http:", "https:")):
        yield _server("mlflow", tracking, f"{tracking}/health", f"{tracking}/version", setting="MLFLOW_TRACKING_URI")
    else:
        mlflow_port = int(os.environ["GRPO_MLFLOW_PORT"])
        yield _port("mlflow port", "127.0.0.1", mlflow_port, setting="GRPO_MLFLOW_PORT", taken="warning")


def _server(package: str, url: str, health: str, version: str, *, setting: str) -> Finding:
    """Whether a server answers, and whether it is of the version that is installed here."""
    installed = importlib.metadata.version(package)
    try:
        _get(health)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Finding(
            area="servers",
            name=package,
            state="problem",
            found=f"{masked(url)} does not answer: {masked(str(error), known=url)}",
            remedy=f"start it, or set {setting} to one that runs",
        )
    try:
        served = _get(version).strip().strip('"')
    except (httpx.HTTPError, httpx.InvalidURL):
        served = "a version that it does not tell"
    same = served.split(".")[:2] == installed.split(".")[:2]
    return Finding(
        area="servers",
        name=package,
        state="ok" if same else "warning",
        found=f"{masked(url)} answers, {served}" + ("" if same else f"; installed here is {installed}"),
        remedy="" if same else "run the same version on both sides",
    )


def _get(url: str) -> str:
    """What an address answers; a name and password in it are sent as such."""
    answer = httpx.get(url, timeout=5, follow_redirects=True)
    answer.raise_for_status()
    return answer.text[:1000]


def _port(name: str, host: str, port: int, *, setting: str, taken: State) -> Finding:
    free = port_is_free(host, port)
    return Finding(
        area="servers",
        name=name,
        state="ok" if free else taken,
        found=f"{host}:{port} is {'free' if free else 'in use by another program'}",
        remedy="" if free else f"set {setting} to a free port",
    )


def capabilities() -> Iterator[Finding]:
    """What a config may ask for on this machine."""
    torch = _imported("torch")
    gpu = torch is not None and torch.cuda.is_available()
    distributed = torch is not None and torch.distributed.is_available()
    table: tuple[tuple[str, tuple[str, ...], bool, str], ...] = (
        ("rollout.backend: transformers", ("torch", "transformers"), True, ""),
        ("rollout.backend: vllm", ("vllm",), gpu, "vLLM plays on a GPU"),
        ("training.engine: trl", ("trl",), True, ""),
        ("training.lora", ("peft",), True, ""),
        ("training.processes", ("torch",), distributed, "this PyTorch was built without torch.distributed"),
        ("policy.quantization", ("bitsandbytes",), gpu, "weights of few bits need a GPU"),
        ("rollout.runner: dask", ("prefect-dask",), True, ""),
        ("models behind openai+https://", ("openai",), True, ""),
        ("store: s3://", ("s3fs",), True, ""),
    )
    for name, needed, possible, reason in table:
        missing = [package for package in needed if not _installed(package)]
        if missing:
            yield Finding(area="capabilities", name=name, state="absent", found=f"{', '.join(missing)} not installed")
        else:
            state: State = "ok" if possible else "absent"
            yield Finding(area="capabilities", name=name, state=state, found="yes" if possible else reason)


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _imported(package: str) -> object | None:
    """The module of an installed package; a missing one is told of with the packages."""
    return importlib.import_module(package) if _installed(package) else None
