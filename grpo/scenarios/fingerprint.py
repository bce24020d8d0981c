"""The identity of a run's sources: what their bytes are, not where or when."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from grpo.artifacts import local_path
from grpo.config.scenarios import (
    ConversationLogSource,
    FileSource,
    GeneratorSource,
    MultiDoGOSource,
    Source,
    Tau2Source,
)
from grpo.errors import DataError
from grpo.scenarios.conversation_log import ConversationLog
from grpo.scenarios.datasets.multidogo import find_multidogo
from grpo.scenarios.datasets.tau2_bench import find_tau2


def content_hash(sources: Sequence[Source]) -> str:
    """Digest of every file that these sources read; a generator's code is digested by `grpo.identity.code.external_digests`.

    Raises `DataError` for a file or folder that is not there.
    """
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.kind.encode())
        for path in _files(source):
            try:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise DataError(f"cannot read {path} of source {source.kind}: {error.strerror}") from error
    return digest.hexdigest()


def _files(source: Source) -> Iterator[Path]:
    if isinstance(source, GeneratorSource):
        return
    root = local_path(source.path) if isinstance(source, FileSource) else Path(source.path)
    if isinstance(source, ConversationLogSource):
        log = ConversationLog(root)
        yield from (root / name for name in (log.files() if source.files is None else source.files))
        return
    if not root.exists():
        raise DataError(f"no file or folder {root} for source {source.kind}; set its path")
    if isinstance(source, FileSource):
        yield root
    elif isinstance(source, MultiDoGOSource):
        yield from (part.path for part in find_multidogo(root, source.level, source.domains, source.parts))
    elif isinstance(source, Tau2Source):
        yield from sorted(p for p in find_tau2(root, source.domain).rglob("*") if p.suffix in (".json", ".md", ".toml"))
    else:
        yield from sorted(path for path in root.rglob("*") if path.is_file())
