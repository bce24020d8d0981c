"""Repositories on the Hugging Face hub: pinned to a commit, verified, offline from the hub's own cache.

`huggingface_hub` fetches the files into its cache (HF_HOME), resumes a download that was cut, and sends HF_TOKEN.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from grpo.errors import ArtifactError, DataError, PolicyError, StorageError
from grpo.storage.files import file_digest, storage_errors
from grpo.storage.hub_errors import hub_errors

if TYPE_CHECKING:
    from huggingface_hub import HfApi

OFFLINE = "GRPO_HUB_OFFLINE"
"""Variable with the user's choice of HF_HUB_OFFLINE. Commands set HF_HUB_OFFLINE for all packages, but still fetch what
a config names unless the user has chosen to be offline."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TRUE = ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads its variables
_MOST_FILES = 20_000
_ANSWER_S = 30.0
_lifted = threading.RLock()


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRepository:
    """A model or a data set on the hub at a branch, tag or commit. Without a revision, the newest commit of main."""

    repo: str
    revision: str | None = None
    kind: Literal["model", "dataset"] = "model"

    @property
    def is_pinned(self) -> bool:
        """True for the full hash of a commit."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    @property
    def error(self) -> type[PolicyError | DataError]:
        """Class of the errors that are raised if the repository cannot be used."""
        return PolicyError if self.kind == "model" else DataError

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file of a commit, as the hub lists it."""

    name: str
    size: int
    sha256: str | None
    """Digest of a large file. None if git holds the file itself."""
    git_sha1: str | None


def is_offline() -> bool:
    """Return True if the user has set HF_HUB_OFFLINE."""
    if (choice := os.environ.get(OFFLINE)) is not None:
        return choice.upper() in _TRUE
    from huggingface_hub import is_offline_mode

    return is_offline_mode()


def pin(repository: HubRepository) -> HubRepository:
    """Pin a repository to the commit that its revision names now, or if offline, named when it was fetched.

    Raises `PolicyError`, for a data set `DataError`, if the repository or revision does not exist, is private or gated,
    or is not in the cache while offline, and `ConnectionError` if the hub does not answer.
    """
    if repository.is_pinned:
        return repository
    if is_offline():
        return replace(repository, revision=_cached_commit(repository))
    with _online(repository) as api:
        name, revision, kind = repository.repo, repository.revision, repository.kind
        commit = api.repo_info(name, revision=revision, repo_type=kind, timeout=_ANSWER_S).sha
        api.resolve_revision(name, revision=revision, repo_type=kind)  # cached for a later run that is offline
    if commit is None or _COMMIT.fullmatch(commit) is None:
        raise repository.error(
            f"{repository}: {endpoint()} answered with {commit!r}, which is not the id of a commit. Check HF_ENDPOINT"
        )
    return replace(repository, revision=commit)


def list_files(repository: HubRepository) -> dict[str, HubFile]:
    """Files of a commit, by path. If they were listed before, they come from the cache. Raises like `pin`."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    name, revision, kind = repository.repo, repository.revision, repository.kind
    try:
        listed = [
            HubFile(
                name=file.path,
                size=file.size,
                sha256=file.lfs.sha256 if file.lfs is not None else None,
                git_sha1=file.blob_id,
            )
            for file in get_cached_repo_tree(name, revision=revision, repo_type=kind)
        ]
    except CachedRepoTreeNotFoundError:
        if is_offline():
            raise _not_cached(repository) from None
        with _online(repository) as api:
            read = api.model_info if kind == "model" else api.dataset_info
            info = read(name, revision=revision, files_metadata=True, timeout=_ANSWER_S)
        listed = [
            HubFile(
                name=file.rfilename,
                size=file.size or 0,
                sha256=file.lfs.sha256 if file.lfs is not None else None,
                git_sha1=file.blob_id,
            )
            for file in info.siblings or []
        ]
    if len(listed) > _MOST_FILES:
        raise repository.error(
            f"{repository} has {len(listed):,} files, at most {_MOST_FILES:,} are listed. Name another {kind}"
        )
    return {file.name: file for file in listed}


def download(repository: HubRepository, files: Sequence[HubFile]) -> Path:
    """Fetch the missing ones of these files of a pinned repository, and return its folder. Raises like `pin`."""
    from huggingface_hub import constants, snapshot_download

    from grpo.storage.fetch_progress import fetch_bar  # imports tqdm

    cache = Path(constants.HF_HUB_CACHE)
    folder = (
        cache / f"{repository.kind}s--{repository.repo.replace('/', '--')}" / "snapshots" / str(repository.revision)
    )
    missing = [file for file in files if not (folder / file.name).is_file()]
    if not missing:
        return folder
    if is_offline():
        raise _not_cached(repository, missing[0].name)
    _check_space(repository, cache, sum(file.size for file in missing))
    names, bar = [glob.escape(file.name) for file in files], fetch_bar(sum(file.size for file in missing))
    with _online(repository):
        snapshot_download(
            repository.repo,
            repo_type=repository.kind,
            revision=repository.revision,
            allow_patterns=names,
            tqdm_class=bar,
        )
    absent = [file.name for file in files if not (folder / file.name).is_file()]
    if absent:
        raise ConnectionError(f"{repository}: {endpoint()} did not send {absent[0]}. Run it again")
    return folder


def verify(repository: HubRepository, file: HubFile, path: Path) -> None:
    """Compare a file with the digest that the hub lists.

    Raises `ArtifactError` if it differs. The file is then removed from the cache.
    """
    from huggingface_hub.utils.sha import git_hash

    if file.sha256 is not None:
        expected, actual = file.sha256, file_digest(path)
    elif file.git_sha1 is not None:
        expected, actual = file.git_sha1, git_hash(path.read_bytes())
    else:
        raise ArtifactError(f"{repository}: {endpoint()} lists no digest of {file.name}. Check HF_ENDPOINT")
    if actual != expected:
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise ArtifactError(
            f"{file.name} of {repository} is not the hub's: its digest is {actual}, the hub lists {expected}. It was "
            "removed from the cache, run it again to fetch it once more"
        )


def _check_space(repository: HubRepository, cache: Path, size: int) -> None:
    place = next(parent for parent in (cache, *cache.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if size > free:
        raise StorageError(
            f"{repository} takes {size:,} bytes in {cache}, where {free:,} are free. Free space, or set HF_HOME to "
            "another disk"
        )


def _cached_commit(repository: HubRepository) -> str:
    """Commit that a revision named when it was fetched."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RevisionResolutionError

    try:
        name, revision, kind = repository.repo, repository.revision, repository.kind
        return HfApi().resolve_revision(name, revision=revision, repo_type=kind, local_files_only=True).resolved
    except RevisionResolutionError as error:
        raise _not_cached(repository) from error


def _not_cached(repository: HubRepository, name: str = "") -> PolicyError | DataError:
    from huggingface_hub import constants

    is_model = repository.kind == "model"
    whole = f"no folder {repository} here, and the model {repository}" if is_model else f"data set {repository}"
    part = f"{name} of {repository}" if name else whole
    remedy = "set policy.model to a folder" if is_model else "name a saved folder in a source of kind huggingface"
    return repository.error(
        f"{part} is not in the cache {constants.HF_HUB_CACHE}, and nothing is fetched because HF_HUB_OFFLINE is set. "
        f"Unset it (in a container or worker {OFFLINE}=0), or {remedy}"
    )


def endpoint() -> str:
    """Address of the hub."""
    from huggingface_hub import constants

    return constants.ENDPOINT


@contextmanager
def _online(repository: HubRepository) -> Iterator[HfApi]:
    """Allow requests to the hub about a repository that the user named, then restore the packages' offline state."""
    from huggingface_hub import HfApi, constants

    with _lifted, hub_errors(str(repository), repository.repo, repository.kind), _cache_errors(constants.HF_HUB_CACHE):
        before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, False
        try:
            yield HfApi()
        finally:
            constants.HF_HUB_OFFLINE = before


@contextmanager
def _cache_errors(cache: str) -> Iterator[None]:
    """If the cache cannot be written, name the variable that moves it."""
    try:
        with storage_errors(cache):
            yield
    except StorageError as error:
        raise StorageError(f"{error}. The cache of the hub is in HF_HOME") from error
