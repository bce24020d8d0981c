"""From a source's settings to its records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from grpo.config.scenarios import FileSource, GeneratorSource, HuggingFaceSource, MultiDoGOSource, Source
from grpo.errors import DataError
from grpo.scenarios.readers.csv_file import read_csv
from grpo.scenarios.readers.generator import read_generator
from grpo.scenarios.readers.huggingface import read_huggingface
from grpo.scenarios.readers.json_file import read_json
from grpo.scenarios.readers.lines import read_lines
from grpo.scenarios.readers.multidogo import read_multidogo
from grpo.scenarios.readers.parquet import read_parquet
from grpo.scenarios.readers.record import Record
from grpo.scenarios.readers.tau2_bench import read_tau2_bench

_FILES = {"jsonl": read_lines, "json": read_json, "parquet": read_parquet, "csv": read_csv}


def read_records(source: Source) -> Iterator[Record]:
    """Read a source lazily. Raises `DataError` where it is missing, cannot be read, or holds no record."""
    record = None
    for record in _reader(source):
        yield record
    if record is None:
        place = source.function if isinstance(source, GeneratorSource) else source.path
        raise DataError(f"source {place} ({source.kind}) is empty; fill it or take it out of scenarios.sources")


def _reader(source: Source) -> Iterator[Record]:
    if isinstance(source, GeneratorSource):
        return read_generator(source.function)
    path = Path(source.path)
    if isinstance(source, FileSource):
        return _FILES[source.kind](path)
    if isinstance(source, HuggingFaceSource):
        return read_huggingface(path, source.split)
    if isinstance(source, MultiDoGOSource):
        return read_multidogo(path, domains=source.domains, parts=source.parts)
    return read_tau2_bench(path, source.domain)
