"""Receipt of an erasure, which stays in the log.

It is written with the erasure's document, and again after each step, because removed records and copies cannot be
counted later. If an erasure fails before its end, it leaves an incomplete receipt, and the next attempt adds to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from grpo.errors import DataError
from grpo.log.compaction import ErasedRecords, write_erasure
from grpo.log.copies import ErasedCopy
from grpo.log.folder import ERASURES, read_erasure
from grpo.log.records import Erasure
from grpo.log.segments import write_private
from grpo.storage.documents import Document

RECEIPTS = "receipts"
"""Folder inside the folder of erasures."""


class ErasedArtifact(Document):
    """Erased artifact, with its kind and digest."""

    place: str
    sha256: str


class ErasureReceipt(Document):
    """Record of an erasure, which proves what was removed but does not name the user or conversation."""

    id: str
    """Name of the first document of the erasure."""
    status: Literal["incomplete", "complete"]
    """Incomplete until all copies are removed. As long as it is incomplete, the erasure must be repeated."""
    time: datetime
    subject: Literal["user", "conversation"]
    subject_hash: str
    """sha256 of the conversation's id, or of the user's hash in the log, which is keyed by the log's salt."""
    turns: int
    """Turns that were removed from the log."""
    feedback: int
    """Feedback that was removed from the log."""
    ended: int
    """Turns in progress that the erasing process ended."""
    copies: dict[str, int]
    """Number of removed copies by place."""
    artifacts: tuple[ErasedArtifact, ...]
    versions: tuple[str, ...]
    """Registered versions that were trained on an erased conversation. Their training cannot be repeated."""
    skipped: tuple[str, ...] = ()
    """Stores that were not searched: of registered versions without a valid signature, and folders that versions name
    and this machine does not have."""

    @property
    def records(self) -> int:
        """Records that were removed from the log."""
        return self.turns + self.feedback


class ReceiptFile:
    """Receipt of an erasure in progress.

    If an earlier attempt left an incomplete receipt, this one continues it. A receipt is written as soon as something
    of the subject is found.
    """

    def __init__(self, folder: Path, subject: Erasure) -> None:
        self._folder, self._subject = folder, subject
        self._earlier = _earlier(folder, subject)
        is_continued = self._earlier is not None and self._earlier.status == "incomplete"
        self._receipt = self._earlier if self._earlier is not None and is_continued else _empty("", subject)
        self._before = self._receipt

    @property
    def artifacts(self) -> list[str]:
        """Digests of the artifacts that this attempt and earlier attempts have erased."""
        return [item.sha256 for item in self._receipt.artifacts]

    def add_ended(self, ended: int) -> None:
        """Add turns in progress that were ended."""
        if ended:
            self._write(ended=self._receipt.ended + ended)

    def set_records(self, records: ErasedRecords) -> None:
        """Set how many records this attempt has removed from the log so far."""
        before = self._before
        self._write(
            id=before.id or records.id, turns=before.turns + records.turns, feedback=before.feedback + records.feedback
        )

    def add_copies(self, copies: Sequence[ErasedCopy]) -> None:
        """Add copies that were removed."""
        if not copies:
            return
        counts = Counter(self._receipt.copies) + Counter(copy.place for copy in copies)
        erased = [ErasedArtifact(place=copy.place, sha256=copy.sha256) for copy in copies if copy.sha256]
        self._write(copies=dict(sorted(counts.items())), artifacts=(*self._receipt.artifacts, *erased))

    def complete(self, versions: Iterable[str], skipped: Iterable[str]) -> ErasureReceipt | None:
        """Complete the receipt and return it. If nothing was erased, return the earlier receipt, or None."""
        if not self._receipt.id:
            return self._earlier
        self._write(
            status="complete", versions=tuple(sorted({*self._receipt.versions, *versions})), skipped=tuple(skipped)
        )
        return self._receipt

    def _write(self, **changes: object) -> None:
        id = self._receipt.id or changes.pop("id", "") or write_erasure(self._folder, self._subject)
        self._receipt = self._receipt.model_copy(update={**changes, "id": id})
        content = self._receipt.model_dump_json(indent=1).encode()
        write_private(self._folder / ERASURES / RECEIPTS / f"{id}.json", lambda file: file.write(content))


def _earlier(folder: Path, subject: Erasure) -> ErasureReceipt | None:
    """Last receipt of this subject, else of the last document that names it, or None if there is neither.

    If a process was killed after it wrote the document, the receipt is missing, so an empty one is returned.
    """
    receipts = {path.stem: _read(path) for path in (folder / ERASURES / RECEIPTS).glob("*.json")}
    own = [receipt for receipt in receipts.values() if receipt.subject_hash == _subject_hash(subject)]
    if own:
        return max(own, key=lambda receipt: (receipt.status == "incomplete", receipt.time))
    erasures = [(path.stem, read_erasure(path)) for path in (folder / ERASURES).glob("*.json")]
    naming = [
        (erasure.time, id)
        for id, erasure in erasures
        if erasure.users & subject.users or erasure.conversations & subject.conversations
    ]
    if not naming:
        return None
    id = max(naming)[1]
    return receipts.get(id) or _empty(id, subject)


def _empty(id: str, subject: Erasure) -> ErasureReceipt:
    return ErasureReceipt(
        id=id,
        status="incomplete",
        time=subject.time,
        subject="user" if subject.users else "conversation",
        subject_hash=_subject_hash(subject),
        turns=0,
        feedback=0,
        ended=0,
        copies={},
        artifacts=(),
        versions=(),
    )


def _subject_hash(subject: Erasure) -> str:
    return next(iter(subject.users or subject.conversations), "")


def _read(path: Path) -> ErasureReceipt:
    try:
        return ErasureReceipt.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise DataError(f"receipt {path} cannot be read: {error}. Move the file away and erase again") from error
