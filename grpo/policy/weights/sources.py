"""Model addresses. Configs, commands and agents all name models in the same way.

data/models/desk_clerk            a folder with config.json, *.safetensors and a tokenizer, or with adapters
grpo://models/desk_clerk          a model folder that ships with the package
Qwen/Qwen3-0.6B@v1.0              a model on the Hugging Face hub at a revision; an existing folder of that name wins
models/smol.Q4_1.gguf             a GGUF file, or a folder with one
models:/support-desk@champion     a registered version, by alias or, as models:/support-desk/3, by number
s3://bucket/store/model/3fa1…#…   a model in an object store, with its sha256

A run first pins an address, e.g. a branch to its commit, or an alias to its version.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from grpo.artifacts import Artifact, ArtifactStore, local_path, store_of
from grpo.errors import PolicyError, printable
from grpo.policy.model_files import (
    ADAPTERS,
    CONFIG,
    check_architecture,
    check_model_files,
    check_quantization,
    read_object,
    tokenizer_folder,
)
from grpo.policy.weights import hub
from grpo.policy.weights.gguf_file import conversion_digest, converted_folder, find_gguf
from grpo.policy.weights.registered import REGISTERED, ModelVersion, registered_version
from grpo.storage.files import stamped_digest
from grpo.storage.hub import HubRepository, pin
from grpo.storage.shipped import SCHEME

_STATE = "learner.json"
"""State of a checkpoint. If the checkpoint has adapters, the state names their base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Folder of a model, or folders of adapters and of their base."""

    folder: Path
    base: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """Folders of a model's config and tokenizer. They differ if adapters have their own tokenizer."""

    config: Path
    tokenizer: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """Address, size and missing files of a model that a run would load."""

    address: str
    """The pinned address."""
    origin: str
    """Kind of the address, with its commit or digest."""
    size: int
    """Bytes of the model's files."""
    missing: int = 0
    """Bytes that a run must fetch first."""


class ModelSource(Protocol):
    """Place of a model's files."""

    @property
    def pinned(self) -> str:
        """Address that names the same files whenever it is read."""
        ...

    def identity(self) -> str:
        """Digest of the files, or of what they are made from, without fetching weights."""
        ...

    def folder(self) -> Path:
        """Fetch or convert the model if necessary, and return its folder."""
        ...

    def described(self) -> AbstractContextManager[Path]:
        """Folder with config and tokenizer inside the context, without fetching or converting weights."""
        ...

    def plan(self) -> ModelPlan:
        """Sizes of the files."""
        ...


@dataclass(frozen=True, slots=True)
class FolderSource:
    """Model folder on this machine, or one that ships with the package."""

    pinned: str

    def identity(self) -> str:
        """See `ModelSource.identity`."""
        return stamped_digest(self.folder())

    def folder(self) -> Path:
        """See `ModelSource.folder`."""
        return check_model_files(local_path(self.pinned))

    @contextmanager
    def described(self) -> Iterator[Path]:
        """See `ModelSource.described`."""
        yield self.folder()

    def plan(self) -> ModelPlan:
        """See `ModelSource.plan`."""
        return ModelPlan(address=self.pinned, origin="folder", size=_size(self.folder()))


@dataclass(frozen=True, slots=True)
class GgufSource:
    """GGUF file on this machine."""

    pinned: str
    file: Path

    def identity(self) -> str:
        """See `ModelSource.identity`."""
        return conversion_digest(self.file)

    def folder(self) -> Path:
        """See `ModelSource.folder`."""
        return converted_folder(self.file)

    @contextmanager
    def described(self) -> Iterator[Path]:
        """See `ModelSource.described`."""
        from grpo.policy.weights.gguf import describe_gguf

        with tempfile.TemporaryDirectory(prefix="grpo-gguf-") as folder:
            describe_gguf(self.file, Path(folder))
            yield Path(folder)

    def plan(self) -> ModelPlan:
        """See `ModelSource.plan`."""
        return ModelPlan(address=self.pinned, origin="GGUF, converted to float32 once", size=self.file.stat().st_size)


@dataclass(frozen=True, slots=True)
class HubSource:
    """Model on the Hugging Face hub, at a commit."""

    model: HubRepository

    @property
    def pinned(self) -> str:
        """See `ModelSource.pinned`."""
        return str(self.model)

    def identity(self) -> str:
        """See `ModelSource.identity`."""
        return hashlib.sha256(f"hub {self.model}".encode()).hexdigest()

    def folder(self) -> Path:
        """See `ModelSource.folder`."""
        with self.described() as described:
            if (described / CONFIG).is_file():  # adapters may have none
                check_architecture(described)
        return check_model_files(hub.fetch(self.model))

    @contextmanager
    def described(self) -> Iterator[Path]:
        """See `ModelSource.described`."""
        folder = hub.fetch_description(self.model)
        if (folder / CONFIG).is_file():
            check_quantization(folder)
        yield folder

    def plan(self) -> ModelPlan:
        """See `ModelSource.plan`."""
        plan = hub.plan(self.model)
        origin = f"hub, commit {str(self.model.revision)[:12]}, {plan.files} files"
        return ModelPlan(address=self.pinned, origin=origin, size=plan.size, missing=plan.missing)


@dataclass(frozen=True, slots=True)
class StoredSource:
    """Model in an object store, or the checkpoint of a registered version."""

    pinned: str
    origin: str
    artifact: Artifact | None = None
    """The checkpoint; None for an address in an object store."""

    def identity(self) -> str:
        """See `ModelSource.identity`."""
        return stamped_digest(self.folder()) if self.artifact is None else self.artifact.sha256

    def folder(self) -> Path:
        """See `ModelSource.folder`."""
        path = local_path(self.pinned) if self.artifact is None else artifact_path(self.artifact)
        return check_model_files(path)

    @contextmanager
    def described(self) -> Iterator[Path]:
        """See `ModelSource.described`."""
        yield self.folder()

    def plan(self) -> ModelPlan:
        """See `ModelSource.plan`."""
        return ModelPlan(address=self.pinned, origin=self.origin, size=_size(self.folder()))


def model_source(address: str) -> ModelSource:
    """Source of the model at an address. A model on the hub is pinned to a commit.

    Raises `PolicyError`, `AddressError` or `ConfigError` if there is no model at the address, and `ConnectionError` if
    the registry, store or hub does not answer.
    """
    if address.startswith(REGISTERED):
        return _registered(registered_version(address))
    if address.startswith(SCHEME):
        return FolderSource(address)
    if "://" in address:
        return StoredSource(address, "object store")
    if (model := hub.hub_model(address)) is not None:
        return HubSource(pin(model))
    if (file := find_gguf(Path(address))) is not None:
        return GgufSource(address, file)
    return FolderSource(address)


def _registered(version: ModelVersion) -> StoredSource:
    return StoredSource(version.address, "registered version", version.checkpoint)


def model_files(address: str) -> ModelFiles:
    """Fetch or convert the model at an address, and the base of adapters. Raises the errors of `model_source`."""
    return _files_of(model_source(address))


def version_files(version: ModelVersion) -> ModelFiles:
    """Files of a registered version, and the base of its adapters. Raises `ArtifactError` if they are damaged."""
    return _files_of(_registered(version))


def _files_of(source: ModelSource) -> ModelFiles:
    folder = source.folder()
    base = _base_source(source, folder)
    return ModelFiles(folder=folder, base=None if base is None else _whole_model(source.pinned, base))


def model_identity(address: str) -> str:
    """Digest of the model at an address, by commit, version or content. Fetches no weights from a hub."""
    source = model_source(address)
    if isinstance(source, GgufSource):
        return source.identity()
    with source.described() as folder:
        base = _base_source(source, folder)
    identity = source.identity()
    return identity if base is None else hashlib.sha256(f"{identity} on {base.identity()}".encode()).hexdigest()


@contextmanager
def model_description(address: str) -> Iterator[ModelDescription]:
    """Yield the config and tokenizer of the model at an address. Fetches no weights from a hub."""
    source = model_source(address)
    with source.described() as folder:
        if (base := _base_source(source, folder)) is None:
            yield ModelDescription(config=folder, tokenizer=folder)
        else:
            with base.described() as base_folder:
                yield ModelDescription(config=base_folder, tokenizer=tokenizer_folder(folder, base_folder))


def model_plan(address: str) -> ModelPlan:
    """Size of the model at an address, and bytes to fetch. Raises the errors of `model_source`."""
    return model_source(address).plan()


def artifact_path(artifact: Artifact) -> Path:
    """Verified local path of an artifact, in the store that holds it."""
    return store_of(artifact).path(artifact)


def _stored_base(address: str, state: Path, base: object) -> StoredSource:
    """Base that the checkpoint of adapters at an address names. It is on this machine or in the checkpoint's own store.

    The file may be a stranger's, and the host of another address would be asked for the base.
    """
    try:
        artifact = Artifact.model_validate(base)
    except ValidationError as error:
        reasons = "; ".join(f"{'.'.join(map(str, fault['loc']))} {fault['msg']}" for fault in error.errors())
        raise PolicyError(f"{state} names no base: {reasons}. Take the folder that a run wrote") from error
    store = address.rsplit("/", 2)[0] if "://" in address else str(state.resolve().parent.parent.parent)
    if "://" not in artifact.uri or artifact.uri.startswith(f"{store}/"):
        return StoredSource(artifact.uri, "checkpoint", artifact)
    own = ArtifactStore(store)
    copied = own.folder("checkpoint", artifact.sha256)  # with a checkpoint that was copied from another store
    if own.has(copied):
        return StoredSource(copied.uri, "checkpoint", copied)
    raise PolicyError(
        f"{state} names a base in another store, {printable(artifact.uri)}. Give the checkpoint by its address in that "
        "store, or a folder with merged weights"
    )


def _base_source(source: ModelSource, folder: Path) -> ModelSource | None:
    """Base of the adapters in the folder of a source, or None if the folder holds a whole model."""
    address = source.pinned
    if not (folder / ADAPTERS).is_file():
        return None
    if (folder / _STATE).is_file() and (base := read_object(folder / _STATE).get("base")) is not None:
        of_store = source.artifact.uri if isinstance(source, StoredSource) and source.artifact else address
        return _stored_base(of_store, folder / _STATE, base)
    config = read_object(folder / ADAPTERS)
    name, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not isinstance(name, str) or not name or "://" in name or name.startswith(REGISTERED):
        raise PolicyError(
            f"{address} holds adapters, but base_model_name_or_path in {ADAPTERS} is {name!r}, which is neither a "
            "folder nor a model on a hub. Set it to the model that they are for"
        )
    try:
        return model_source(f"{name}@{revision}" if revision and hub.hub_model(name) is not None else name)
    except (PolicyError, ConnectionError) as error:
        raise type(error)(
            f"{address} holds adapters for {name}, and {error}. Correct base_model_name_or_path in {ADAPTERS}"
        ) from error


def _whole_model(address: str, base: ModelSource) -> Path:
    """Folder of a base. Raises `PolicyError` if the base consists of adapters too."""
    try:
        folder = base.folder()
    except PolicyError as error:
        raise PolicyError(
            f"{address} holds adapters for {base.pinned}, and {error}. Correct base_model_name_or_path in {ADAPTERS}"
        ) from error
    if (folder / ADAPTERS).is_file():
        raise PolicyError(
            f"{address} holds adapters for {base.pinned}, which holds adapters too. Merge these into their own base "
            "first"
        )
    return folder


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
