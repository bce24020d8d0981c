"""Models on the Hugging Face hub: pinned to a commit, safetensors only, verified, offline from the hub's own cache.

Qwen/Qwen3-0.6B                 the newest commit of the branch main
Qwen/Qwen3-0.6B@v1.0            a branch, a tag or a commit
Qwen/Qwen3-0.6B@c1899de289a…    pinned, with all 40 digits of the commit

`huggingface_hub` fetches the files into its cache (HF_HOME), resumes a download that was cut, and sends HF_TOKEN. Files
that run code when they are read (`*.bin`, `*.pt`, `*.pkl`, `*.py`) are never fetched.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.errors import ArtifactError, PolicyError, StorageError
from grpo.policy.weights.hub_errors import hub_errors
from grpo.storage.files import file_digest, storage_errors

if TYPE_CHECKING:
    from huggingface_hub import HfApi

OFFLINE = "GRPO_HUB_OFFLINE"
"""Variable with the user's choice of HF_HUB_OFFLINE: commands set that one for all packages, and fetch what a config
names nevertheless."""
_ADDRESS = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>\w[\w./-]*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHARD = re.compile(r"[\w.-]+\.safetensors")
_TRUE = ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads its variables
CONFIG, ADAPTERS, WEIGHTS = "config.json", "adapter_config.json", "model.safetensors"
INDEX, ADAPTER_WEIGHTS = f"{WEIGHTS}.index.json", "adapter_model.safetensors"
_DESCRIPTION = frozenset(
    {
        *(CONFIG, ADAPTERS, "generation_config.json", INDEX, "chat_template.jinja", "chat_template.json"),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
        *("merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json"),
    }
)
"""Files that a model is described by, weights apart."""
_MOST_FILES, _LARGEST_DESCRIPTION = 20_000, 128 * 2**20
_ANSWER_S = 30.0
_lifted = threading.RLock()


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """A model on the hub at a branch, tag or commit; without one, at the newest commit of main."""

    repo: str
    revision: str | None = None

    @property
    def is_pinned(self) -> bool:
        """True for the full hash of a commit."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file of a commit, as the hub lists it."""

    name: str
    size: int
    sha256: str | None
    """Digest of a large file; None for one that git holds itself."""
    git_sha1: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPlan:
    """Files of a model that a run reads, and how many of their bytes are not in the cache."""

    model: HubModel
    files: int
    size: int
    missing: int


def hub_model(address: str) -> HubModel | None:
    """Parse `org/name[@revision]`; None for any other address, and where a file or folder of that name exists."""
    match = _ADDRESS.fullmatch(address)
    if match is None or ".." in address or Path(address).exists():
        return None
    return HubModel(repo=match["repo"], revision=match["revision"])


def is_offline() -> bool:
    """Return True if the user has set HF_HUB_OFFLINE."""
    if (choice := os.environ.get(OFFLINE)) is not None:
        return choice.upper() in _TRUE
    from huggingface_hub import is_offline_mode

    return is_offline_mode()


def pin(model: HubModel) -> HubModel:
    """Pin a model to the commit that its revision names now; offline, to the one that it named when it was fetched.

    Raises `PolicyError` for a model or revision that does not exist, is private or gated, or is not in the cache
    offline, and `ConnectionError` for a hub that does not answer.
    """
    if model.is_pinned:
        return model
    if is_offline():
        return HubModel(repo=model.repo, revision=_cached_commit(model))
    with _online(model) as api:
        commit = api.model_info(model.repo, revision=model.revision, timeout=_ANSWER_S).sha
        api.resolve_revision(model.repo, revision=model.revision)  # writes it down for a later run that is offline
    if commit is None or _COMMIT.fullmatch(commit) is None:
        raise PolicyError(f"{model}: {_endpoint()} names no commit but {commit!r}; check HF_ENDPOINT")
    return HubModel(repo=model.repo, revision=commit)


def plan(model: HubModel) -> HubPlan:
    """List what a run of a pinned model reads; fetches its config and tokenizer, not its weights. Raises as `fetch`."""
    files = _list_files(model)
    folder = fetch_description(model)
    needed = [files[name] for name in _read(model, files, folder)]
    return HubPlan(
        model=model,
        files=len(needed),
        size=sum(file.size for file in needed),
        missing=sum(file.size for file in needed if not (folder / file.name).is_file()),
    )


def fetch_description(model: HubModel) -> Path:
    """Fetch config, tokenizer and chat template of a pinned model; returns their folder. Raises as `fetch`."""
    files = _list_files(model)
    names = sorted(_DESCRIPTION & files.keys())
    if CONFIG not in files and ADAPTERS not in files:
        raise PolicyError(f"{model} is not a model: it has no {CONFIG}; its files are {_shown(files)}")
    for name in names:
        if files[name].size > _LARGEST_DESCRIPTION:
            raise PolicyError(
                f"{model}: {name} has {files[name].size:,} bytes, and at most {_LARGEST_DESCRIPTION:,} are read; "
                "choose another revision"
            )
    return _download(model, [files[name] for name in names])


def fetch(model: HubModel) -> Path:
    """Fetch a pinned model, or take it from the cache; returns its folder, whose files are verified by their digests.

    Raises `PolicyError` for a model without safetensors, that is private or gated, or that is not in the cache
    offline, `ArtifactError` for a file that is not the hub's, `StorageError` for a full disk, and `ConnectionError`
    for a hub that does not answer or breaks off.
    """
    files = _list_files(model)
    needed = [files[name] for name in _read(model, files, fetch_description(model))]
    folder = _download(model, needed)
    for file in needed:
        _verify(model, file, folder / file.name)
    return folder


def _read(model: HubModel, files: dict[str, HubFile], folder: Path) -> list[str]:
    """Names of the files that a run reads: the description and the weights."""
    names = sorted(_DESCRIPTION & files.keys())
    if ADAPTERS in files:
        weights = [ADAPTER_WEIGHTS] if ADAPTER_WEIGHTS in files else []
    elif WEIGHTS in files:
        weights = [WEIGHTS]
    else:
        weights = _shards(model, files, folder) if INDEX in files else []
    if not weights:
        raise PolicyError(f"{model} has no safetensors weights, {_instead(files)}")
    return [*names, *weights]


def _shards(model: HubModel, files: dict[str, HubFile], folder: Path) -> list[str]:
    """Shards in the index of the weights. Raises `PolicyError` for an index that names other files."""
    try:
        shards = sorted(set(json.loads((folder / INDEX).read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PolicyError(f"{model}: {INDEX} is not an index of weights: {error!r}; choose another revision") from error
    wrong = [shard for shard in shards if shard not in files or _SHARD.fullmatch(shard) is None]
    if wrong:
        raise PolicyError(f"{model}: {INDEX} names {str(wrong[0])[:100]!r}, which is not one of its safetensors files")
    return shards


def _instead(files: dict[str, HubFile]) -> str:
    """Weights of other formats that a model has, and the remedy."""
    pickled = [name for name in files if name.endswith((".bin", ".pt", ".pth", ".pkl", ".ckpt"))]
    gguf = [name for name in files if name.endswith(".gguf")]
    if pickled:
        return (
            f"only {pickled[0]}, which runs code when it is read; name a revision with safetensors (the hub's "
            "converter offers one as org/name@refs/pr/N), or convert them and name the folder"
        )
    if gguf:
        return f"only GGUF; fetch one of them, for example {gguf[0]}, and set policy.model to that file"
    return f"only {_shown(files)}; name another model"


def _shown(files: dict[str, HubFile]) -> str:
    names = sorted(files)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "none"


def _list_files(model: HubModel) -> dict[str, HubFile]:
    """Files at the root of a commit, by name, from the cache where they were listed before."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        listed = [
            HubFile(
                name=file.path,
                size=file.size,
                sha256=file.lfs.sha256 if file.lfs is not None else None,
                git_sha1=file.blob_id,
            )
            for file in get_cached_repo_tree(model.repo, revision=model.revision)
        ]
    except CachedRepoTreeNotFoundError:
        if is_offline():
            raise _not_cached(model) from None
        with _online(model) as api:
            info = api.model_info(model.repo, revision=model.revision, files_metadata=True, timeout=_ANSWER_S)
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
        raise PolicyError(f"{model} has {len(listed):,} files, at most {_MOST_FILES:,} are listed; name another model")
    return {file.name: file for file in listed if "/" not in file.name}


def _download(model: HubModel, files: Sequence[HubFile]) -> Path:
    """Folder of these files in the cache; the missing ones are fetched."""
    from huggingface_hub import constants, snapshot_download

    from grpo.policy.weights.fetch_progress import fetch_bar  # imports tqdm

    cache = Path(constants.HF_HUB_CACHE)
    folder = cache / f"models--{model.repo.replace('/', '--')}" / "snapshots" / str(model.revision)
    missing = [file for file in files if not (folder / file.name).is_file()]
    if not missing:
        return folder
    if is_offline():
        raise _not_cached(model, missing[0].name)
    _check_space(model, cache, sum(file.size for file in missing))
    names, bar = [glob.escape(file.name) for file in files], fetch_bar(sum(file.size for file in missing))
    with _online(model):
        snapshot_download(model.repo, revision=model.revision, allow_patterns=names, tqdm_class=bar)
    absent = [file.name for file in files if not (folder / file.name).is_file()]
    if absent:
        raise ConnectionError(f"{model}: {_endpoint()} did not send {absent[0]}; run it again")
    return folder


def _check_space(model: HubModel, cache: Path, size: int) -> None:
    place = next(parent for parent in (cache, *cache.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if size > free:
        raise StorageError(
            f"{model} takes {size:,} bytes in {cache}, where {free:,} are free; free space, or set HF_HOME to "
            "another disk"
        )


def _verify(model: HubModel, file: HubFile, path: Path) -> None:
    """Compare a file with the digest that the hub lists; a different one is removed from the cache."""
    from huggingface_hub.utils.sha import git_hash

    if file.sha256 is not None:
        expected, actual = file.sha256, file_digest(path)
    elif file.git_sha1 is not None:
        expected, actual = file.git_sha1, git_hash(path.read_bytes())
    else:
        raise ArtifactError(f"{model}: {_endpoint()} lists no digest of {file.name}; check HF_ENDPOINT")
    if actual != expected:
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise ArtifactError(
            f"{file.name} of {model} is not the hub's: its digest is {actual}, the hub lists {expected}; it was "
            "removed from the cache, run it again to fetch it anew"
        )


def _cached_commit(model: HubModel) -> str:
    """Commit that a revision named when it was fetched."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RevisionResolutionError

    try:
        return HfApi().resolve_revision(model.repo, revision=model.revision, local_files_only=True).resolved
    except RevisionResolutionError as error:
        raise _not_cached(model) from error


def _not_cached(model: HubModel, name: str = "") -> PolicyError:
    from huggingface_hub import constants

    part = f"{name} of {model}" if name else f"no folder {model} here, and the model {model}"
    return PolicyError(
        f"{part} is not in the cache {constants.HF_HUB_CACHE}; HF_HUB_OFFLINE is set, so that nothing is fetched: "
        f"unset it (in a container or worker {OFFLINE}=0), or set policy.model to a folder"
    )


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


@contextmanager
def _online(model: HubModel) -> Iterator[HfApi]:
    """Requests to the hub about a model that was named; packages get back their own state of offline."""
    from huggingface_hub import HfApi, constants

    with _lifted, hub_errors(str(model), model.repo), _cache_errors(constants.HF_HUB_CACHE):
        before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, False
        try:
            yield HfApi()
        finally:
            constants.HF_HUB_OFFLINE = before


@contextmanager
def _cache_errors(cache: str) -> Iterator[None]:
    """Name the variable that moves the cache where it cannot be written."""
    try:
        with storage_errors(cache):
            yield
    except StorageError as error:
        raise StorageError(f"{error}; the cache of the hub is in HF_HOME") from error
