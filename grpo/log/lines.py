"""Lines of a segment: the checksum of a record and the record as JSON.

    5f0c11d2 {"kind":"turn","id":"chatcmpl-7f…","turns":[…],"token_ids":"FgAAAA==",…}

JSON escapes newlines, so that damage ends with its line. Arrays are base64 of their bytes, so that a log-probability,
also NaN, is read back bit by bit.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from grpo.data_errors import error_text, try_call
from grpo.errors import DataError
from grpo.log.records import Feedback, Record, ServedTurn
from grpo.log.tables import Damage, record_from_row, record_row

_KINDS: dict[str, type[Record]] = {"turn": ServedTurn, "feedback": Feedback}
_ARRAYS = {"token_ids": np.dtype("<i4"), "loss_mask": np.dtype("?"), "sampler_logprobs": np.dtype("<f4")}
_CHECKSUM = 9
assert sys.byteorder == "little"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Line of a segment: its number from 1, the position after it, and the record or the damage."""

    number: int
    end: int
    content: Record | Damage


def encode(record: Record) -> bytes:
    """Line of a record. Raises `DataError` if JSON cannot hold it, e.g. for NaN or half a surrogate pair."""
    try:
        text = json.dumps(_document(record), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        content = text.encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"record {record.id} cannot be stored as JSON: {error}. Correct its values") from error
    return b"%08x %s\n" % (zlib.crc32(content), content)


def record_digest(record: Record) -> bytes:
    """sha256 of all fields of a record.

    If another program wrote the record, it may have values that a line cannot hold, e.g. 1e999. Then Python's `repr` of
    the record is digested instead.
    """
    content = try_call(lambda: encode(record))
    if isinstance(content, Exception):
        arrays = [getattr(record, name).tobytes() for name in _ARRAYS if hasattr(record, name)]
        content = b"\0".join([repr(record).encode(errors="surrogatepass"), *arrays])
    return hashlib.sha256(content).digest()


def _document(record: Record) -> dict[str, Any]:
    row: dict[str, Any] = record_row(record)
    for name in _ARRAYS.keys() & row.keys():
        row[name] = base64.b64encode(np.ascontiguousarray(row[name], _ARRAYS[name]).tobytes()).decode()
    row["time"] = row["time"].isoformat()
    return {"kind": "turn" if isinstance(record, ServedTurn) else "feedback", **row}


def decode(line: bytes) -> Record:
    """Record of a line without its newline. Raises `DataError` if the checksum or the record is wrong."""
    content = line[_CHECKSUM:]
    if line[:_CHECKSUM] != b"%08x " % zlib.crc32(content):
        raise DataError("damaged record: the checksum differs")
    record = try_call(lambda: _record(content))
    if isinstance(record, Exception):
        raise DataError(f"not a record: {error_text(record)}") from record
    return record


def _record(content: bytes) -> Record:
    row = json.loads(content)
    kind = _KINDS[row.pop("kind")]
    row["time"] = datetime.fromisoformat(row["time"])
    for name in _ARRAYS.keys() & row.keys():
        row[name] = np.frombuffer(base64.b64decode(row[name]), _ARRAYS[name])
    record = record_from_row(row)
    if type(record) is not kind:
        raise DataError(f"the record is not of the kind {kind.__name__}")
    return record


def read_lines(content: bytes, *, torn: bool = False) -> Iterator[Line]:
    """Lines of a segment's bytes.

    If bytes follow the last newline, their record was not acknowledged, because its writer was killed or is still
    writing. With `torn` they are reported as damage, else they are left out.
    """
    position = number = 0
    while (stop := content.find(b"\n", position)) >= 0:
        number += 1
        line = content[position:stop]
        record = try_call(lambda line=line: decode(line))  # type: ignore[misc]
        if isinstance(record, Exception):
            yield _damage(number, stop + 1, len(line), str(record))
        else:
            yield Line(number=number, end=stop + 1, content=record)
        position = stop + 1
    if torn and position < len(content):
        yield _damage(number + 1, len(content), len(content) - position, "torn record: it was not acknowledged")


def _damage(number: int, end: int, size: int, reason: str) -> Line:
    return Line(number=number, end=end, content=Damage(line=number, bytes=size, reason=reason))
