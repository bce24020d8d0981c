"""Models on the Hugging Face hub: pinned to a commit, safetensors only, verified, offline from the hub's own cache.

Qwen/Qwen3-0.6B                 the newest commit of the branch main
Qwen/Qwen3-0.6B@v1.0            a branch, a tag or a commit
Qwen/Qwen3-0.6B@c1899de289a…    pinned, with all 40 digits of the commit

Files that run code when they are read (`*.bin`, `*.pt`, `*.pkl`, `*.py`) are never fetched.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from grpo.errors import PolicyError
from grpo.policy.model_files import (
    ADAPTER_WEIGHTS,
    ADAPTERS,
    CHAT_TEMPLATE,
    CONFIG,
    INDEX,
    PROCESSOR_FILES,
    WEIGHTS,
)
from grpo.storage.hub import HubFile, HubRepository, download, list_files, verify

_ADDRESS = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>\w[\w./-]*))?")
_SHARD = re.compile(r"[\w.-]+\.safetensors")
_DESCRIPTION = frozenset(
    {
        *(CONFIG, ADAPTERS, "generation_config.json", INDEX, "chat_template.jinja", CHAT_TEMPLATE, *PROCESSOR_FILES),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
        *("merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json"),
    }
)
"""Files that describe a model, without its weights."""
_LARGEST_DESCRIPTION = 128 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPlan:
    """Number and bytes of a model's files that a run reads, and the bytes that are not in the cache."""

    model: HubRepository
    files: int
    size: int
    missing: int


def hub_model(address: str) -> HubRepository | None:
    """Parse `org/name[@revision]`. None if the address has another form, or if a file or folder has that name."""
    match = _ADDRESS.fullmatch(address)
    if match is None or ".." in address or Path(address).exists():
        return None
    return HubRepository(repo=match["repo"], revision=match["revision"])


def plan(model: HubRepository) -> HubPlan:
    """List what a run of a pinned model reads. Fetches config and tokenizer, but no weights. Raises as `fetch`."""
    files = _root_files(model)
    folder = fetch_description(model)
    needed = [files[name] for name in _read(model, files, folder)]
    return HubPlan(
        model=model,
        files=len(needed),
        size=sum(file.size for file in needed),
        missing=sum(file.size for file in needed if not (folder / file.name).is_file()),
    )


def fetch_description(model: HubRepository) -> Path:
    """Fetch config, tokenizer and chat template of a pinned model, and return their folder. Raises as `fetch`."""
    files = _root_files(model)
    names = sorted(_DESCRIPTION & files.keys())
    if CONFIG not in files and ADAPTERS not in files:
        raise PolicyError(f"{model} is not a model: it has no {CONFIG}. Its files are {_shown(files)}")
    for name in names:
        if files[name].size > _LARGEST_DESCRIPTION:
            raise PolicyError(
                f"{model}: {name} has {files[name].size:,} bytes, and at most {_LARGEST_DESCRIPTION:,} are read. "
                "Choose another revision"
            )
    return download(model, [files[name] for name in names])


def fetch(model: HubRepository) -> Path:
    """Fetch a pinned model, or take it from the cache, verify its files by their digests, and return its folder.

    Raises `PolicyError` if the model has no safetensors, is private or gated, or is not in the cache while offline,
    `ArtifactError` if a file is not the hub's, `StorageError` if the disk is full, and `ConnectionError` if the hub
    does not answer or breaks off.
    """
    files = _root_files(model)
    needed = [files[name] for name in _read(model, files, fetch_description(model))]
    folder = download(model, needed)
    for file in needed:
        verify(model, file, folder / file.name)
    return folder


def _root_files(model: HubRepository) -> dict[str, HubFile]:
    return {name: file for name, file in list_files(model).items() if "/" not in name}


def _read(model: HubRepository, files: dict[str, HubFile], folder: Path) -> list[str]:
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


def _shards(model: HubRepository, files: dict[str, HubFile], folder: Path) -> list[str]:
    """Shards in the index of the weights. Raises `PolicyError` if the index names other files."""
    try:
        shards = sorted(set(json.loads((folder / INDEX).read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PolicyError(f"{model}: {INDEX} is not an index of weights: {error!r}. Choose another revision") from error
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
            f"only {pickled[0]}, which runs code when it is read. Name a revision with safetensors (the hub's "
            "converter offers one as org/name@refs/pr/N), or convert them and name the folder"
        )
    if gguf:
        return f"only GGUF. Fetch one of them, for example {gguf[0]}, and set policy.model to that file"
    return f"only {_shown(files)}. Name another model"


def _shown(files: dict[str, HubFile]) -> str:
    names = sorted(files)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "none"
