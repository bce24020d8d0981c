"""Mirror of the serving log in MLflow: turns as traces, feedback as assessments, and people's assessments as feedback.

    log ──► unread records ──► redacted ──► traces, assessments ──► position
    log ◄── feedback of source `mlflow` ◄── assessments that people gave in MLflow's page

The log stays the authoritative record. No turn waits for the mirror, because it is a thread that reads the log's files,
and another process redacts them. While the tracking server is down, records wait in the log. If the server is killed
before the position is written, records are sent twice, but appear once, because their ids are derived from the ids in
the log. Only one process at a time mirrors a folder into an experiment.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from filelock import Timeout
from pydantic import ValidationError

from grpo.config.serving import MirrorSettings
from grpo.errors import DataError
from grpo.log.folder import ERASURES, ServedLog, read_erasure
from grpo.log.follower import LogReader, LogStep
from grpo.log.records import OUTCOMES, Feedback, Record, ServedTurn
from grpo.serving.mirror.redacted import Redaction
from grpo.serving.mirror.redaction_process import RedactionProcess
from grpo.serving.mirror.trace_store import TraceStore, is_refusal
from grpo.serving.mirror.traces import (
    CONVERSATION_TAG,
    NAMES,
    assessments,
    feedback_record,
    is_from_page,
    spans,
    trace_id,
    trace_info,
)
from grpo.storage.files import write_atomically
from grpo.storage.locks import file_lock

logger = logging.getLogger(__name__)

FOLDER = "mirror"
"""Folder of the positions, inside the log's folder."""
_BATCH = 32  # records
_LONGEST_PAUSE_S = 60.0
_EXPIRY_S = 3600.0
_END_S = 5.0
"""Longest wait for a batch in progress when the server stops. If it does not end, the next start sends it again."""


@dataclass(slots=True, kw_only=True)
class MirrorCounts:
    """Counts of this process."""

    waiting: int = 0
    """Records of the log that are not sent yet."""
    turns: int = 0
    """Sent turns."""
    feedback: int = 0
    """Sent feedback."""
    refused: int = 0
    """Records that cannot be mirrored, and assessments that are not valid feedback."""
    failures: int = 0
    """Failed attempts, which are repeated."""


class MirroredLog(Protocol):
    """Log of the mirror, see `grpo.log.writer`."""

    folder: Path

    async def append(self, record: Record) -> None:
        """Return when the record is durable."""
        ...


@dataclass(slots=True, kw_only=True)
class _State:
    """Position of a mirror, kept in a file."""

    segments: dict[str, int] = field(default_factory=dict)
    assessments: dict[str, int] = field(default_factory=dict)
    """Time of the last update of each read assessment, in milliseconds."""
    erasures: list[str] = field(default_factory=list)
    """Ids of erasures that were applied to the traces."""


class Mirror:
    """Mirror of a log in the MLflow of `tracking_uri`, which runs while its block does.

    `observe` is called with people's feedback after it is in the log.
    """

    def __init__(
        self,
        log: MirroredLog,
        settings: MirrorSettings,
        *,
        tracking_uri: str,
        retention_days: int | None = None,
        observe: Callable[[Feedback], None] = lambda feedback: None,
    ) -> None:
        self.counts = MirrorCounts()
        self._log, self._settings, self._retention_days, self._observe = log, settings, retention_days, observe
        self._store = TraceStore(tracking_uri, settings.experiment)
        name = hashlib.sha256(f"{tracking_uri}\0{settings.experiment}".encode()).hexdigest()[:16]
        self._file = log.folder / FOLDER / f"{name}.json"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="mirror")
        self._state = _State()
        self._tail = LogReader(log.folder)
        self._process = RedactionProcess()
        self._redaction = Redaction(log.folder, self._process.redact)
        self._unread: Iterator[LogStep] = iter(())
        self._batch: list[LogStep] = []
        self._assessed = self._expired = -float("inf")

    async def __aenter__(self) -> Self:
        """Start the mirror. Raises `DataError` if its position cannot be read."""
        import mlflow.tracing.client  # noqa: F401 - two threads that import it at once may see half of it

        self._loop = asyncio.get_running_loop()
        _read_state(self._file)
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join, _END_S)
        self._process.close()

    def _run(self) -> None:
        """Thread of the mirror: one process at a time has the lock, and others try again until they get it."""
        lock = file_lock(self._file.with_suffix(".lock"))
        while not self._stop.is_set():
            try:
                with suppress(Timeout), lock.acquire(timeout=0):
                    self._state = _read_state(self._file)
                    self._tail.position = self._state.segments
                    self._mirror()
            except Exception as error:  # e.g. a full disk, or a position that another process has damaged
                self.counts.failures += 1
                logger.warning("the mirror of the log in MLflow cannot start: %s: %s", type(error).__name__, error)
            self._stop.wait(self._settings.every_s)

    def _mirror(self) -> None:
        """Mirror until the server stops. After each failure in a row, the wait doubles, up to 60 s."""
        pause_s = self._settings.every_s
        while not self._stop.is_set():
            try:
                self.counts.waiting = self._tail.waiting()
                self._step()
                pause_s = self._settings.every_s
            except Exception as error:
                self.counts.failures += 1
                logger.warning(
                    "the mirror of the log in MLflow failed, and tries again in %.0f s: %s: %s",
                    pause_s,
                    type(error).__name__,
                    error,
                )
                self._stop.wait(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
            else:
                self._stop.wait(pause_s)

    def _step(self) -> None:
        """Send unread records, and read assessments when they are due."""
        self._store.check()
        self._delete_erased()
        while not self._stop.is_set() and self._take():
            self._send([step.record for step in self._batch if step.record is not None])
            for step in self._batch:
                self._tail.advance(step)
            self._batch = []
            self._save()
            self.counts.waiting = self._tail.waiting()
        if time.monotonic() - self._assessed >= self._settings.feedback_s:
            self._read_assessments()
            self._assessed = time.monotonic()
        if self._retention_days is not None and time.monotonic() - self._expired >= _EXPIRY_S:
            oldest = datetime.now(UTC) - timedelta(days=self._retention_days)
            self._store.delete(f"trace.timestamp_ms < {int(1000 * oldest.timestamp())}")
            self._expired = time.monotonic()

    def _take(self) -> bool:
        """Take the next records, unless a failed attempt has left some. False if there are none."""
        self._batch = self._batch or list(islice(self._unread, _BATCH))
        if not self._batch:
            self._unread = self._tail.unread()
            self._batch = list(islice(self._unread, _BATCH))
        return bool(self._batch)

    def _send(self, records: Sequence[Record]) -> None:
        self._redaction.prepare(records)
        served = (record for record in records if isinstance(record, ServedTurn))
        turns = [turn for turn in served if not turn.is_completion and turn.status != "erased"]
        try:
            self._store.write([self._trace(turn) for turn in turns])
        except Exception as error:
            if not _is_refused(error):
                raise
            for turn in turns:
                self._attempt(turn, lambda turn=turn: self._store.write([self._trace(turn)]))  # type: ignore[misc]
        else:
            self.counts.turns += len(turns)
        for record in records:
            if isinstance(record, Feedback) and record.source != "mlflow":
                self._attempt(record, lambda record=record: self._assess(record))  # type: ignore[misc]

    def _attempt(self, record: Record, send: Callable[[], None]) -> None:
        """Send one record. If MLflow refuses it, report and count it."""
        try:
            send()
        except Exception as error:
            if not _is_refused(error):
                raise
            self._refuse(f"record {record.id} of the log is not mirrored: {error}")
        else:
            self.counts.turns += isinstance(record, ServedTurn)
            self.counts.feedback += isinstance(record, Feedback)

    def _trace(self, turn: ServedTurn) -> tuple[Any, Any]:
        messages = self._redaction.messages(turn)
        return trace_info(turn, messages, self._store.experiment_id), spans(turn, messages)

    def _assess(self, feedback: Feedback) -> None:
        """Assess the turn's trace, or the conversation's first one, because MLflow keeps session assessments there."""
        turn_id = feedback.turn_id or self._redaction.first_turn(feedback.conversation_id)
        if turn_id is None:
            raise DataError(f"conversation {feedback.conversation_id} is not in the log")
        trace = trace_id(turn_id)
        if not self._store.has(trace):  # e.g. because the turn is in a segment that is read later
            turns = ServedLog(self._log.folder).turns_of({feedback.conversation_id})
            self._store.write([self._trace(turn) for turn in turns if turn.id == turn_id and not turn.is_completion])
        for assessment in assessments(self._redaction.feedback(feedback)):
            self._store.assess(trace, assessment)

    def _read_assessments(self) -> None:
        """Log assessments that people gave or edited since the last time."""
        known, present = self._state.assessments, {}
        names = NAMES if self._settings.outcomes else [name for name in NAMES if name not in OUTCOMES]
        for info, assessment in self._store.assessed(names):
            if not is_from_page(assessment):
                continue
            name, updated = str(assessment.assessment_id), int(assessment.last_update_time_ms)
            present[name] = updated
            if known.get(name) == updated:
                continue
            try:
                self._log_feedback(feedback_record(assessment, info))
            except DataError as error:
                self._refuse(str(error))
            known[name] = updated
        self._state.assessments = present
        self._save()

    def _log_feedback(self, feedback: Feedback) -> None:
        asyncio.run_coroutine_threadsafe(self._log.append(feedback), self._loop).result()
        self._observe(feedback)

    def _delete_erased(self) -> None:
        """Delete the traces of erased conversations, also traces that were sent while the erasure ran."""
        new = [path for path in (self._log.folder / ERASURES).glob("*.json") if path.stem not in self._state.erasures]
        digests = {digest for path in new for digest in read_erasure(path).conversations}
        self._redaction.forget(digests)
        for digest in digests:
            self._store.delete(f"tag.`{CONVERSATION_TAG}` = '{digest}'")
        self._state.erasures += [path.stem for path in new]  # saved with the next batch, as deleting twice does no harm

    def _refuse(self, message: str) -> None:
        self.counts.refused += 1
        logger.error("%s", message)

    def _save(self) -> None:
        state = {name: getattr(self._state, name) for name in _State.__slots__}
        write_atomically(self._file, json.dumps(state), mode=0o600)


def _is_refused(error: Exception) -> bool:
    return isinstance(error, DataError | ValidationError) or is_refusal(error)


def _read_state(path: Path) -> _State:
    try:
        return _State(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return _State()
    except (ValueError, TypeError) as error:
        raise DataError(
            f"the position of the mirror in {path} cannot be read: {error}. Delete the file. The mirror then sends the "
            "whole log again, and MLflow keeps each record only once"
        ) from error
