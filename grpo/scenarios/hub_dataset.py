"""Data sets on the Hugging Face hub: the files of one split at a commit, verified by their digests.

{kind: hub, id: acme/tickets}                                       split train of the default subset, newest commit
{kind: hub, id: acme/tickets, revision: v2, subset: de, split: test}

Subsets and splits are the same as in `datasets`: from the head of README.md, or else from the names of the files. Only
files of the split are fetched, and no code of the repository is run. The commit identifies the content.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from grpo.config.scenarios import HubDataSource
from grpo.data_errors import error_text, excerpt, try_call
from grpo.errors import DataError
from grpo.storage.hub import HubFile, HubRepository, download, list_files, pin, verify

FORMATS: dict[str, Literal["parquet", "arrow", "jsonl", "json", "csv"]] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".jsonl": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
}
"""Kinds of the files that are read, by their suffix."""
_CARD, _LARGEST_CARD = "README.md", 2**22
_SHOWN = 300  # characters of a list of names


def pin_source(source: HubDataSource) -> HubDataSource:
    """Pin a source to the commit that its revision names now. Raises like `grpo.storage.hub.pin`."""
    return source.model_copy(update={"revision": pin(_repository(source)).revision})


def fetch_split(source: HubDataSource) -> list[Path]:
    """Fetch the files of the split in their order, or take them from the cache.

    Raises `DataError` if the data set, subset or split does not exist or has files in other formats, `ArtifactError` if
    a file differs from the hub's digest, and otherwise like `grpo.storage.hub.pin`.
    """
    repository = pin(_repository(source))
    files = {name: file for name, file in list_files(repository).items() if _is_inside(name)}
    names = _split_files(source, repository, files)
    if other := [name for name in names if PurePosixPath(name).suffix not in FORMATS]:
        raise DataError(
            f"{repository}: split {source.split} has {other[0]}. Files of {', '.join(FORMATS)} are read: name another "
            "revision, such as refs/convert/parquet, or save the data set to a folder"
        )
    return _fetch(repository, [files[name] for name in names])


def _repository(source: HubDataSource) -> HubRepository:
    return HubRepository(repo=source.id, revision=source.revision, kind="dataset")


def _fetch(repository: HubRepository, files: list[HubFile]) -> list[Path]:
    folder = download(repository, files)
    for file in files:
        verify(repository, file, folder / file.name)
    return [folder / file.name for file in files]


def _split_files(source: HubDataSource, repository: HubRepository, files: dict[str, HubFile]) -> list[str]:
    """Names of the files of a split, as `datasets` chooses them from a folder with files of these names."""
    from datasets.data_files import get_data_patterns, resolve_pattern, sanitize_patterns

    subset = _subset(source, repository, files)
    with tempfile.TemporaryDirectory(prefix="grpo-hub-") as scratch:
        root = Path(scratch).resolve()
        for name in files:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
        base = root / str(subset.get("data_dir", ""))
        declared = subset.get("data_files")
        patterns = try_call(lambda: sanitize_patterns(declared) if declared else get_data_patterns(str(base)))
        if isinstance(patterns, Exception):
            raise DataError(f"{repository} has no data files: {error_text(patterns)}. Choose another data set")
        by_split = {str(split): list(parts) for split, parts in patterns.items()}
        if source.split not in by_split:
            raise DataError(
                f"{repository} has no split {source.split!r}, only {_listed(by_split)}. Correct the source's split"
            )
        resolved: list[str] = []
        for pattern in by_split[source.split]:
            if not _is_inside(pattern) or "::" in pattern:
                raise DataError(
                    f"{repository}: {_CARD} names files outside of the repository, {excerpt(pattern)}. Choose another "
                    "data set"
                )
            matches = try_call(partial(resolve_pattern, pattern, str(base)))
            if isinstance(matches, Exception):
                if declared is None:
                    continue  # one of the patterns of `datasets` has matched, so others may match nothing
                raise DataError(f"{repository}: {_CARD} names {excerpt(pattern)}, which it does not have") from matches
            resolved += [Path(match).relative_to(root).as_posix() for match in matches]
    return [name for name in dict.fromkeys(resolved) if name != _CARD]


def _subset(source: HubDataSource, repository: HubRepository, files: dict[str, HubFile]) -> dict[str, Any]:
    """Settings of the subset in the head of README.md. Empty if it declares none."""
    from datasets.utils.metadata import MetadataConfigs
    from huggingface_hub import metadata_load

    declared: Any = {}
    if _CARD in files:
        if files[_CARD].size > _LARGEST_CARD:
            raise DataError(
                f"{repository}: {_CARD} has {files[_CARD].size:,} bytes, at most {_LARGEST_CARD:,} are read"
            )
        (card,) = _fetch(repository, [files[_CARD]])
        declared = try_call(lambda: MetadataConfigs.from_dataset_card_data(metadata_load(card) or {}))
        if isinstance(declared, Exception):
            raise DataError(
                f"{repository}: {_CARD} does not declare subsets as the hub's do: {error_text(declared)}"
            ) from declared
    if source.subset is not None and source.subset not in declared:
        raise DataError(
            f"{repository} has no subset {source.subset!r}, only {_listed(declared)}. Correct the source's subset"
        )
    if not declared:
        return {}
    name = source.subset or try_call(declared.get_default_config_name)
    if name is None or isinstance(name, Exception):
        raise DataError(f"{repository} has subsets {_listed(declared)}. Set the source's subset to one of them")
    return dict(declared[name])


def _is_inside(name: str) -> bool:
    """Return True for a path or pattern below its folder."""
    return "://" not in name and not name.startswith(("/", "~")) and ".." not in PurePosixPath(name).parts


def _listed(names: Iterable[str]) -> str:
    return excerpt(", ".join(names), _SHOWN) or "none"
