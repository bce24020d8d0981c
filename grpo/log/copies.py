"""Copies of served conversations that retraining has made, found and erased.

    store   scenarios, conversations     written again without the rows: versions refer to them
            any other kind               removed: days, mixture, split, rollout, scored, curriculum, corrections,
                                         data_docs, result
            results                      documents that name a conversation
    home    report.*, data_docs, retraining.json, pending-*.json of runs, and whatever else names one
    MLflow  the same files of runs, and traces of the mirror with their assessments, see `serving.mirror.mlflow_copies`

Scenarios have the id `conversation-ID`, forks `conversation-ID~TURN`, corrections `correction-ID-TURN`. An erasure only
needs the sha256 of ids, so it recognizes copies long after the log was erased, and completes an earlier erasure that
was interrupted. A damaged copy in a store could name anybody, so it is erased and counted as unreadable, instead of
stopping every erasure. Files that this package does not write are kept unless they name a conversation. Weights are not
changed, but the versions that were trained on a conversation are reported.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from grpo.artifacts import Artifact, ArtifactStore, stored_artifact
from grpo.errors import ArtifactError, DataError
from grpo.log.folder import SEGMENTS, name_digest
from grpo.log.join import mentioned_conversations
from grpo.storage.files import write_atomically
from grpo.storage.locks import remove
from grpo.storage.objects import open_uri
from grpo.tables import open_parquet

REWRITTEN = ("conversations", "scenarios")
"""Kinds of artifacts that versions refer to, so an artifact is replaced by its remaining rows."""
REMOVED = ("days", "mixture", "split", "rollout", "scored", "curriculum", "corrections", "data_docs", "result")
"""Kinds of artifacts that stages can compute again. Checkpoints and models hold weights, but no conversations."""
_RESULTS = "results"
_STORES, _ADDRESS = Path("services", "stores"), ".address"
REPORT = "report.json"
_REPORT_FILES = (REPORT, "report.html", "report.png", "data_docs")
UNREADABLE = " (unreadable)"
"""Suffix of a damaged copy's place. It cannot be read whom the copy names, so it is removed and counted separately."""
_TEXTS = frozenset({".json", ".jsonl", ".html", ".md", ".txt", ".csv", ".yaml"})
_SERVICES = frozenset({"services", "prefect", "locks", "mlartifacts", ".staging"})
"""Folders of a home that hold no conversations, or that are searched in another way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedCopy:
    """Erased copy."""

    place: str
    """Kind of the artifact or file, e.g. `store/mixture`, `home/report.json` or `mlflow/trace`."""
    sha256: str = ""
    """Digest of the artifact, or empty for a file."""


class Mentions:
    """Test whether texts and tables name one of these conversations, which are given by the digests of their ids."""

    def __init__(self, conversations: Collection[str]) -> None:
        self._digests = frozenset(conversations)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def in_text(self, text: str) -> bool:
        """True if the text names one of the conversations."""
        return any(name_digest(name) in self._digests for name in mentioned_conversations(text))

    def in_rows(self, table: pa.Table) -> NDArray[np.bool_]:  # [rows]
        """For each row, True if one of its texts names one of the conversations."""
        hits = np.zeros(len(table), np.bool_)
        for column in table.columns:
            if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
                continue
            named = pc.fill_null(pc.match_substring_regex(column, "conversation-|correction-"), False)
            for row in np.flatnonzero(named.to_numpy()):
                hits[row] |= self.in_text(column[int(row)].as_py())
        return hits

    def in_file(self, path: Path) -> bool:
        """True if a table or text file names one of the conversations. Raises `DataError` if a table is damaged."""
        if path.suffix == ".parquet":
            return bool(self.in_rows(_read_table(path)).any())
        return path.suffix in _TEXTS and self.in_text(path.read_text(encoding="utf-8", errors="replace"))

    def in_artifact(self, path: Path) -> bool:
        """True if a file or folder names one of the conversations. Raises `DataError` if a table is damaged."""
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        return any(map(self.in_file, files))


def erase_from_store(store: ArtifactStore, mentions: Mentions) -> Iterator[ErasedCopy]:
    """Erase the artifacts and results of a store that name a conversation."""
    for kind in (*REWRITTEN, *REMOVED):
        for artifact, path in _stored(store, kind):
            try:
                is_named = path is not None and mentions.in_artifact(path)
                is_damaged = path is None
            except DataError:
                is_named, is_damaged = False, True
            if is_named or is_damaged:
                remaining = None
                if path is not None and kind in REWRITTEN:
                    remaining = _without(store, artifact, path, mentions)
                store.erase(artifact, remaining)
                place = f"store/{kind}{UNREADABLE if is_damaged else ''}"
                yield ErasedCopy(place=place, sha256=artifact.sha256)
    for name in store.documents.names(_RESULTS):
        place = f"store/{_RESULTS}"
        try:
            is_named = mentions.in_text(json.dumps(store.documents.read(name)))
        except ArtifactError:
            is_named, place = True, f"{place}{UNREADABLE}"
        if is_named:
            store.documents.remove(name)
            yield ErasedCopy(place=place)


def _stored(store: ArtifactStore, kind: str) -> list[tuple[Artifact, Path | None]]:
    """Complete artifacts of a kind, with digests of their current files and local paths, or None if one is damaged."""
    store.documents.names(kind)  # if an object store cannot be reached, this raises an error with a remedy
    file_system, root = open_uri(store.uri)
    folder, artifacts = f"{root.rstrip('/')}/{kind}", []
    for top in sorted(file_system.ls(folder, detail=False)) if file_system.exists(folder) else ():
        with suppress(ArtifactError):  # a folder without a manifest does not count
            artifact = stored_artifact(store, f"{kind}/{Path(top).name}")
            artifacts.append((artifact, Path(top) if store.is_local else _fetched(store, artifact)))
    return artifacts


def _fetched(store: ArtifactStore, artifact: Artifact) -> Path | None:
    """Local path of an artifact of an object store, or None if the artifact is damaged."""
    try:
        return store.path(artifact)
    except ArtifactError:
        return None


def _without(store: ArtifactStore, artifact: Artifact, path: Path, mentions: Mentions) -> Artifact | None:
    """Artifact without damaged tables and without rows that name a conversation. None if all tables are damaged."""
    tables: dict[str, pa.Table] = {}
    for table in sorted(path.glob("*.parquet")):
        with suppress(DataError):
            tables[table.name] = _read_table(table)
    if not tables:
        return None
    with store.new_folder(artifact.kind) as new:
        for name, content in tables.items():
            pq.write_table(content.filter(pa.array(~mentions.in_rows(content))), new.path / name)
    return new.artifact


def _read_table(path: Path) -> pa.Table:
    """Read a whole table, and check that its texts are UTF-8.

    Raises `DataError` if the table is damaged. If the system cannot open or read the file, its `OSError` is raised
    instead, because the table can be read once that is repaired.
    """
    with path.open("rb"):
        pass
    try:
        table = open_parquet(path).read()
        table.validate(full=True)
    except OSError as error:
        if error.errno is not None:
            raise
        raise DataError(f"{path} is damaged: {error}") from error  # pages that cannot be decompressed
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{path} is damaged: {error}") from error
    return table


def remember_store(home: Path, store: str) -> None:
    """Keep the address of a store that gets conversations, so that an erasure searches it before a version names it."""
    local = store.removeprefix("file://")
    address = store.rstrip("/") if "://" in local else str(Path(local).expanduser().absolute())
    write_atomically(_remembered(home, address), address)


def forgetting(home: Path, address: str) -> str:
    """Remedy for the message of an error, if a remembered store is gone. Empty if the store is not remembered."""
    path = _remembered(home, address)
    return f". If this store is gone for good, remove {path}" if path.exists() else ""


def stores_in(home: Path) -> set[str]:
    """Addresses of the artifact stores below a home, where configs may have placed further ones, and of remembered
    stores."""
    remembered = (path.read_text(encoding="utf-8").strip() for path in (home / _STORES).glob(f"*{_ADDRESS}"))
    addresses = {str(home / "artifacts"), *filter(None, remembered)}
    for root, folders, _ in os.walk(home):
        if Path(root) == home:
            folders[:] = [name for name in folders if name not in _SERVICES]
        elif _RESULTS in folders:
            addresses.add(root)
            folders.clear()
    return addresses


def _remembered(home: Path, address: str) -> Path:
    return home / _STORES / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}{_ADDRESS}"


def erase_from_home(home: Path, mentions: Mentions, *, erased: Collection[str], log: Path) -> Iterator[ErasedCopy]:
    """Erase files of runs that name a conversation, and plans of retrainings that name an erased artifact.

    `erased` are digests of artifacts. The log is not searched here, because `erase_records` does that. The folders of
    stores are not searched either, because `erase_from_store` has done so, and a run may be writing to `.staging`.
    """
    own, stores = {log.resolve()}, stores_in(home)
    for folder in sorted(path for path in home.iterdir() if path.is_dir() and path.name not in _SERVICES):
        if folder.resolve() not in own and not (folder / SEGMENTS).is_dir():
            yield from _erase_from_run(folder, mentions, erased, stores)


def _erase_from_run(
    folder: Path, mentions: Mentions, erased: Collection[str], stores: Collection[str]
) -> Iterator[ErasedCopy]:
    report, is_store = folder / REPORT, str(folder) in stores
    if not is_store and report.is_file() and mentions.in_file(report):
        for path in (folder / name for name in _REPORT_FILES):
            remove(path)
        yield ErasedCopy(place=f"home/{REPORT}")
    for path in list(_files(folder, stores)):
        text = path.read_text(encoding="utf-8", errors="replace") if path.match("pending-*.json") else ""
        pending = any(digest[:20] in text for digest in erased)
        try:
            named = pending or mentions.in_file(path)
        except DataError:  # not a table of this package, which keeps its tables in stores
            named = False
        if named:
            path.unlink(missing_ok=True)
            yield ErasedCopy(place="home/pending" if pending else f"home/{path.name}")
    if not is_store and (docs := folder / "data_docs").is_dir() and not any(docs.rglob("*.html")):
        shutil.rmtree(docs)


def _files(folder: Path, stores: Collection[str]) -> Iterator[Path]:
    """Files below a folder, except files in the folders of a store."""
    for root, folders, names in os.walk(folder):
        if root in stores:
            folders.clear()
        yield from (path for name in names if (path := Path(root) / name).is_file())
