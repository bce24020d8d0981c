"""Sources of scenarios: the records of a source's settings, and the content hash of its files.

A published data set `NAME` is read by `read_NAME(folder, parts)` in `grpo/scenarios/datasets/NAME.py`.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from grpo.artifacts import local_path
from grpo.config.scenarios import (
    ChatSource,
    ConversationLogSource,
    CsvSource,
    FileSource,
    HelpDeskSource,
    HubDataSource,
    HuggingFaceSource,
    MultiDoGOSource,
    PublishedSource,
    PythonSource,
    ServedSource,
    Source,
    Tau2Source,
    TraceSource,
    VerifiersSource,
)
from grpo.data_errors import read_guarded
from grpo.errors import DataError
from grpo.log.folder import ServedLog
from grpo.scenarios.conversation_log import ConversationLog
from grpo.scenarios.datasets.multidogo import find_multidogo, read_multidogo
from grpo.scenarios.datasets.tau2_bench import find_tau2, read_tau2_bench
from grpo.scenarios.hub_dataset import FORMATS, fetch_split, pin_source
from grpo.scenarios.readers.chat_records import read_chats
from grpo.scenarios.readers.conversation_log import read_conversation_log
from grpo.scenarios.readers.help_desks import read_help_desk
from grpo.scenarios.readers.huggingface import read_huggingface
from grpo.scenarios.readers.langfuse import read_langfuse
from grpo.scenarios.readers.langsmith import read_langsmith
from grpo.scenarios.readers.python_function import read_python
from grpo.scenarios.readers.served import join_served, served_records
from grpo.scenarios.readers.table_rows import interpret, read_table_cells, read_table_file
from grpo.scenarios.records import SourceRecord

DatasetReader = Callable[[Path, Sequence[str]], Iterator[SourceRecord]]
"""Records of the named parts of a published data set, or of its default parts, in this folder."""

_FILES = (FileSource, CsvSource, ChatSource, TraceSource, HelpDeskSource)
"""Sources of one file."""
_TRACE_READERS = {"langsmith": read_langsmith, "langfuse": read_langfuse}


def dataset_reader(name: str, items: str = "") -> DatasetReader:
    """Reader of a published data set: of its scenarios, or if `items` is `_pairs` or `_labels`, of these."""
    module = importlib.import_module(f"grpo.scenarios.datasets.{name}")
    reader: DatasetReader = getattr(module, f"read_{name}{items}")
    return reader


def read_records(source: Source) -> Iterator[SourceRecord]:
    """Read a source lazily.

    Raises `DataError` if the source is missing, cannot be read, or holds no record. Only a log may be empty, because
    the policy may not have served a conversation yet.
    """
    place = source_name(source)
    record = None
    for record in read_guarded(lambda: _read(source), place):
        yield record
    if record is None and not isinstance(source, ConversationLogSource | ServedSource):
        raise DataError(f"source {place} is empty; fill it or take it out of scenarios.sources")


def source_name(source: Source) -> str:
    """Path, function, data set or taskset of a source, and its kind: `chats.jsonl (sharegpt)`."""
    if isinstance(source, (VerifiersSource, HubDataSource)):
        return f"{source.id} ({source.kind})"
    return f"{source.object if isinstance(source, PythonSource) else source.path} ({source.kind})"


def _read(source: Source) -> Iterator[SourceRecord]:
    if isinstance(source, PythonSource):
        return read_python(source.reference, source.options)
    if isinstance(source, VerifiersSource):
        from grpo.scenarios.datasets.verifiers import read_taskset  # the package is an extra

        return read_taskset(source.id, source.args)
    if isinstance(source, ServedSource):
        return served_records(join_served(source), source)
    if isinstance(source, HubDataSource):
        return _read_hub(source)
    path = local_path(source.path)
    if isinstance(source, FileSource):
        return read_table_file(source, source.kind, path)
    if isinstance(source, CsvSource):
        return read_table_file(source, source.kind, path, source)
    if isinstance(source, ChatSource):
        return read_chats(source, path)
    if isinstance(source, TraceSource):
        return _TRACE_READERS[source.kind](path, users=source.users)
    if isinstance(source, HelpDeskSource):
        return read_help_desk(source.kind, path, source.users)
    if isinstance(source, ConversationLogSource):
        return read_conversation_log(path, source.files)
    if isinstance(source, HuggingFaceSource):
        return read_huggingface(source, path)
    if isinstance(source, MultiDoGOSource):
        return read_multidogo(path, domains=source.domains, parts=source.parts, level=source.level)
    if isinstance(source, PublishedSource):
        return dataset_reader(source.kind)(path, source.parts)
    return read_tau2_bench(path, source.domain, source.tasks)


def _read_hub(source: HubDataSource) -> Iterator[SourceRecord]:
    """Records of the files of a split, which are fetched first. A conversation may have rows in several files."""
    paths = fetch_split(source)
    if source.messages is not None:
        cells = (read_table_cells(source, FORMATS[path.suffix], path, source.csv) for path in paths)
        yield from interpret(source, paths[0], chain.from_iterable(cells))
        return
    for path in paths:
        yield from read_table_file(source, FORMATS[path.suffix], path, source.csv)


def content_hash(sources: Sequence[Source]) -> str:
    """Content hash of all files that these sources read. `grpo.identity.code` digests functions and tasksets.

    A data set on the hub is identified by its commit. Raises `DataError` if a file, folder or data set is missing, and
    `ConnectionError` if the hub does not answer.
    """
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.kind.encode())
        if isinstance(source, _FILES):
            digest.update(local_path(source.path).name.encode())  # chooses the reader, names records
        if isinstance(source, VerifiersSource):
            digest.update(source.model_dump_json().encode())
        if isinstance(source, ServedSource):
            log = ServedLog(local_path(source.path))
            digest.update(log.digest(log.snapshot() if source.segments is None else source.segments).encode())
        if isinstance(source, HubDataSource):
            digest.update(pin_source(source).model_dump_json(include={"id", "revision", "subset", "split"}).encode())
        for path in _files(source):
            try:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise DataError(f"cannot read {path} of source {source.kind}: {error.strerror}") from error
    return digest.hexdigest()


def _files(source: Source) -> Iterator[Path]:
    if isinstance(source, PythonSource | VerifiersSource | HubDataSource | ServedSource):
        return
    root = local_path(source.path)
    if isinstance(source, ConversationLogSource):
        log = ConversationLog(root)
        yield from (root / name for name in (log.files() if source.files is None else source.files))
        return
    if not root.exists():
        raise DataError(f"no file or folder {root} for source {source.kind}; set its path")
    if isinstance(source, _FILES):
        yield root
        if isinstance(source, ChatSource) and source.requests is not None:
            yield local_path(source.requests)
    elif isinstance(source, MultiDoGOSource):
        yield from (part.path for part in find_multidogo(root, source.level, source.domains, source.parts))
    elif isinstance(source, Tau2Source):
        yield from sorted(p for p in find_tau2(root, source.domain).rglob("*") if p.suffix in (".json", ".md", ".toml"))
    else:
        yield from sorted(path for path in root.rglob("*") if path.is_file())
