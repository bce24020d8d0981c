"""Sources of scenarios: for each class of settings, one `Reader` in `SOURCES` says how its records are read.

A new source is a class of settings in `grpo.config.scenarios` and a line in `SOURCES`. A published data set `NAME` is
read by `read_NAME(folder, parts)` in `grpo/contrib/datasets/NAME.py`.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from grpo.artifacts import local_path
from grpo.config.scenarios import (
    ChatSource,
    CsvSource,
    FileSource,
    HelpDeskSource,
    HubDataSource,
    HuggingFaceSource,
    MultiDoGOSource,
    PublishedSource,
    PythonSource,
    ScenarioSettings,
    ServedSource,
    Source,
    Tau2Source,
    TraceSource,
    VerifiersSource,
)
from grpo.data_errors import read_guarded
from grpo.errors import DataError
from grpo.scenarios.hub_dataset import FORMATS, fetch_split, pin_source
from grpo.scenarios.readers.chat_records import read_chats
from grpo.scenarios.readers.exports.help_desks import read_help_desk
from grpo.scenarios.readers.files.source_files import open_source
from grpo.scenarios.readers.huggingface import read_huggingface
from grpo.scenarios.readers.python_function import read_python
from grpo.scenarios.readers.served import join_served, served_digest, served_records, served_snapshot
from grpo.scenarios.readers.table_rows import interpret, read_table_cells, read_table_file
from grpo.scenarios.readers.traces.langfuse import read_langfuse
from grpo.scenarios.readers.traces.langsmith import read_langsmith
from grpo.scenarios.readers.traces.spans import read_spans
from grpo.scenarios.records import SourceRecord
from grpo.storage.files import files_below

DatasetReader = Callable[[Path, Sequence[str]], Iterator[SourceRecord]]
"""Records of the named parts of a published data set, or of its default parts, in this folder."""


def dataset_reader(name: str, items: str = "") -> DatasetReader:
    """Reader of a published data set: of its scenarios, or if `items` is `_pairs` or `_labels`, of these."""
    reader: DatasetReader = getattr(_dataset(name), f"read_{name}{items}")
    return reader


def _dataset(name: str) -> Any:
    """Module of a published data set, which is found by its name."""
    return importlib.import_module(f"grpo.contrib.datasets.{name}")


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Functions that read one kind of source. Each takes the settings of a source."""

    read: Callable[[Any], Iterator[SourceRecord]]
    """Its records, lazily."""
    files: Callable[[Any], Iterable[Path]] = lambda source: ()
    """Files that it reads, in a fixed order. Their contents are its identity."""
    identity: Callable[[Any], str] = lambda source: ""
    """Text that identifies its content in addition to its files, e.g. the revision of a data set."""
    name: Callable[[Any], str] = lambda source: str(source.path)
    """Path, function, data set or taskset, for messages."""
    pin: Callable[[Any], Any] = lambda source: source
    """Settings that name the revision that a hub has now."""
    snapshot: Callable[[Any], Any] = lambda source: source
    """Settings that name the entries that a log has now, so that later ones belong to the next retraining."""
    may_be_empty: bool = False
    """True for a log, because the policy may not have served a conversation yet."""


def read_records(source: Source) -> Iterator[SourceRecord]:
    """Read a source lazily.

    Raises `DataError` if the source is missing, cannot be read, or holds no record. Only a log may be empty.
    """
    reader, place, record = SOURCES[type(source)], source_name(source), None
    for record in read_guarded(lambda: reader.read(source), place):
        yield record
    if record is None and not reader.may_be_empty:
        raise DataError(f"source {place} is empty. Fill it or take it out of scenarios.sources")


def source_name(source: Source) -> str:
    """Path, function, data set or taskset of a source, and its kind: `chats.jsonl (sharegpt)`."""
    return f"{SOURCES[type(source)].name(source)} ({source.kind})"


def pin_sources(settings: ScenarioSettings) -> ScenarioSettings:
    """Pin all data sets on the hub in the settings. Raises like `grpo.storage.hub.pin`."""
    sources = tuple(SOURCES[type(source)].pin(source) for source in settings.sources)
    return settings if sources == settings.sources else settings.model_copy(update={"sources": sources})


def snapshot(source: Source) -> Source:
    """A log as it is now, so that later entries belong to the next retraining. Other sources stay as they are."""
    taken: Source = SOURCES[type(source)].snapshot(source)
    return taken


def content_hash(sources: Sequence[Source]) -> str:
    """Content hash of all files that these sources read. `grpo.identity.code` digests functions and tasksets.

    A data set on the hub is identified by its commit. Raises `DataError` if a file, folder or data set is missing, and
    `ConnectionError` if the hub does not answer.
    """
    digest = hashlib.sha256()
    for source in sources:
        reader = SOURCES[type(source)]
        digest.update(f"{source.kind}\0{reader.identity(source)}\0".encode(errors="surrogateescape"))
        for path in reader.files(source):
            try:
                with open_source(path) as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise DataError(f"cannot read {path} of source {source.kind}: {error.strerror}") from error
    return digest.hexdigest()


def _root(source: Any) -> Path:
    """File or folder of a source. Raises `DataError` if it is missing."""
    root = local_path(source.path)
    if not root.exists():
        raise DataError(f"there is no file or folder {root} for source {source.kind}. Correct its path")
    return root


def _file(read: Callable[[Any, Path], Iterator[SourceRecord]]) -> Reader:
    """Reader of one file. The name of the file is part of its identity, because it chooses the format."""
    return Reader(
        read=lambda source: read(source, local_path(source.path)),
        files=lambda source: [_root(source), *_requests(source)],
        identity=lambda source: local_path(source.path).name,
    )


def _requests(source: Any) -> list[Path]:
    requests = getattr(source, "requests", None)
    return [] if requests is None else [local_path(requests)]


def _folder(
    read: Callable[[Any, Path], Iterator[SourceRecord]], files: Callable[[Any, Path], Iterable[Path]]
) -> Reader:
    """Reader of a folder with these files. Their names are part of its identity, because they choose the split."""

    def names(source: Any) -> str:
        root = _root(source)
        return "\n".join(path.relative_to(root).as_posix() for path in files(source, root))

    return Reader(
        read=lambda source: read(source, local_path(source.path)),
        files=lambda source: files(source, _root(source)),
        identity=names,
    )


def _all_files(source: Any, root: Path) -> list[Path]:
    return files_below(root)


def _multidogo_files(source: MultiDoGOSource, root: Path) -> list[Path]:
    find = _dataset(source.kind).find_multidogo
    return [part.path for part in find(root, source.level, source.domains, source.parts)]


def _tau2_files(source: Tau2Source, root: Path) -> list[Path]:
    suffixes = (".json", ".md", ".toml")
    folder = _dataset(source.kind).find_tau2(root, source.domain)
    return [path for path in files_below(folder) if path.suffix in suffixes]


def _read_trace(source: TraceSource, path: Path) -> Iterator[SourceRecord]:
    read = {"langsmith": read_langsmith, "langfuse": read_langfuse}.get(source.kind, partial(read_spans, source.kind))
    return read(path, users=source.users)


def _read_taskset(source: VerifiersSource) -> Iterator[SourceRecord]:
    from grpo.scenarios.readers.verifiers import read_taskset  # the package is an extra

    return read_taskset(source.id, source.args)


def _read_hub(source: HubDataSource) -> Iterator[SourceRecord]:
    """Records of the files of a split, which are fetched first. A conversation may have rows in several files."""
    paths = fetch_split(source)
    if source.messages is not None:
        cells = (read_table_cells(source, FORMATS[path.suffix], path, source.csv) for path in paths)
        yield from interpret(source, paths[0], chain.from_iterable(cells))
        return
    for path in paths:
        yield from read_table_file(source, FORMATS[path.suffix], path, source.csv)


def _hub_identity(source: HubDataSource) -> str:
    return pin_source(source).model_dump_json(include={"id", "revision", "subset", "split"})


SOURCES: dict[type[Any], Reader] = {
    FileSource: _file(lambda source, path: read_table_file(source, source.kind, path)),
    CsvSource: _file(lambda source, path: read_table_file(source, source.kind, path, source)),
    ChatSource: _file(read_chats),
    TraceSource: _file(_read_trace),
    HelpDeskSource: _file(lambda source, path: read_help_desk(source.kind, path, source.users)),
    HuggingFaceSource: _folder(read_huggingface, _all_files),
    PublishedSource: _folder(lambda source, path: dataset_reader(source.kind)(path, source.parts), _all_files),
    Tau2Source: _folder(
        lambda source, path: _dataset(source.kind).read_tau2_bench(path, source.domain, source.tasks), _tau2_files
    ),
    MultiDoGOSource: _folder(
        lambda source, path: _dataset(source.kind).read_multidogo(
            path, domains=source.domains, parts=source.parts, level=source.level
        ),
        _multidogo_files,
    ),
    HubDataSource: Reader(read=_read_hub, identity=_hub_identity, name=lambda source: source.id, pin=pin_source),
    PythonSource: Reader(
        read=lambda source: read_python(source.reference, source.options), name=lambda source: source.object
    ),
    VerifiersSource: Reader(
        read=_read_taskset, identity=lambda source: source.model_dump_json(), name=lambda source: source.id
    ),
    ServedSource: Reader(
        read=lambda source: served_records(join_served(source), source),
        identity=served_digest,
        snapshot=served_snapshot,
        may_be_empty=True,
    ),
}
"""The reader of each class of settings."""
