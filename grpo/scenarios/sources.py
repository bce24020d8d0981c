"""From a source's settings to its records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from grpo.artifacts import local_path
from grpo.config.scenarios import (
    ConversationLogSource,
    FileSource,
    GeneratorSource,
    HuggingFaceSource,
    MultiDoGOSource,
    PublishedSource,
    Source,
)
from grpo.errors import DataError
from grpo.scenarios.data_errors import read_guarded
from grpo.scenarios.datasets.abcd_sample import read_abcd_sample
from grpo.scenarios.datasets.banking77 import read_banking77
from grpo.scenarios.datasets.bfcl_multi_turn import read_bfcl_multi_turn
from grpo.scenarios.datasets.bitext_customer_service import read_bitext_customer_service
from grpo.scenarios.datasets.bridge_math_tutoring import read_bridge_math_tutoring
from grpo.scenarios.datasets.casino_negotiation import read_casino_negotiation
from grpo.scenarios.datasets.cima_tutoring import read_cima_tutoring
from grpo.scenarios.datasets.gsm8k import read_gsm8k
from grpo.scenarios.datasets.mt_bench import read_mt_bench
from grpo.scenarios.datasets.multidogo import read_multidogo
from grpo.scenarios.datasets.sgd import read_sgd
from grpo.scenarios.datasets.taskmaster import read_taskmaster
from grpo.scenarios.datasets.tau2_bench import read_tau2_bench
from grpo.scenarios.datasets.tau_bench_fewshot import read_tau_bench_fewshot
from grpo.scenarios.readers.conversation_log import read_conversation_log
from grpo.scenarios.readers.csv_file import read_csv
from grpo.scenarios.readers.generator import read_generator
from grpo.scenarios.readers.huggingface import read_huggingface
from grpo.scenarios.readers.json_file import read_json
from grpo.scenarios.readers.jsonl import read_jsonl
from grpo.scenarios.readers.parquet import read_parquet
from grpo.scenarios.readers.record import SourceRecord

_FILES = {"jsonl": read_jsonl, "json": read_json, "parquet": read_parquet, "csv": read_csv}
_PUBLISHED = {
    "abcd_sample": read_abcd_sample,
    "banking77": read_banking77,
    "bfcl_multi_turn": read_bfcl_multi_turn,
    "bitext_customer_service": read_bitext_customer_service,
    "bridge_math_tutoring": read_bridge_math_tutoring,
    "casino_negotiation": read_casino_negotiation,
    "cima_tutoring": read_cima_tutoring,
    "gsm8k": read_gsm8k,
    "mt_bench": read_mt_bench,
    "sgd": read_sgd,
    "taskmaster": read_taskmaster,
    "tau_bench_fewshot": read_tau_bench_fewshot,
}


def read_records(source: Source) -> Iterator[SourceRecord]:
    """Read a source lazily. Raises `DataError` where it is missing, cannot be read, or holds no record.

    A conversation log may be empty: nobody has spoken to the policy yet.
    """
    place = f"{source.function if isinstance(source, GeneratorSource) else source.path} ({source.kind})"
    record = None
    for record in read_guarded(lambda: _reader(source), place):
        yield record
    if record is None and not isinstance(source, ConversationLogSource):
        raise DataError(f"source {place} is empty; fill it or take it out of scenarios.sources")


def _reader(source: Source) -> Iterator[SourceRecord]:
    if isinstance(source, GeneratorSource):
        return read_generator(source.function)
    if isinstance(source, FileSource):
        return _FILES[source.kind](local_path(source.path))
    path = Path(source.path)
    if isinstance(source, ConversationLogSource):
        return read_conversation_log(path, source.files)
    if isinstance(source, HuggingFaceSource):
        return read_huggingface(path, source.split)
    if isinstance(source, MultiDoGOSource):
        return read_multidogo(path, domains=source.domains, parts=source.parts, level=source.level)
    if isinstance(source, PublishedSource):
        return _PUBLISHED[source.kind](path, source.parts)
    return read_tau2_bench(path, source.domain, source.tasks)
