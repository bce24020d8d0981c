"""Footer of a Parquet file, checked before Arrow reads a page.

If a column chunk has contradictory statistics, `RowGroupMetaData.column` aborts the process (pyarrow 25). Therefore the
metadata are decoded here, from Thrift's compact protocol, and any damage raises an exception.

https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAGIC = b"PAR1"
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 11, 12
_DICTIONARY, _PREFIXES = {2, 8}, {7}  # PLAIN_DICTIONARY and RLE_DICTIONARY; DELTA_BYTE_ARRAY


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChunk:
    """One column of one row group."""

    path: str
    values: int
    uncompressed: int
    """Bytes of its pages once decompressed."""
    dictionary: bool
    """True if its values may be indices of a dictionary."""
    prefixes: bool
    """True if its values may share a prefix with the value before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """One row group."""

    rows: int
    chunks: tuple[ColumnChunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFooter:
    """Number of rows and the row groups, as the file declares them."""

    rows: int
    groups: tuple[RowGroup, ...]


def read_footer(path: Path) -> ParquetFooter:
    """Read the footer. Raises `ValueError`, `IndexError` or `KeyError` if it is damaged."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - 8, 0))
        tail = file.read(8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or length > size - 12:
            raise ValueError("no footer at its end")
        file.seek(size - 8 - length)
        fields = _Thrift(file.read(length)).struct()
    return ParquetFooter(rows=fields[3], groups=tuple(map(_group, fields[4])))


def _group(fields: dict[int, Any]) -> RowGroup:
    return RowGroup(rows=fields[3], chunks=tuple(_chunk(column[3]) for column in fields[1]))


def _chunk(fields: dict[int, Any]) -> ColumnChunk:
    encodings = set(fields[2])
    return ColumnChunk(
        path=b".".join(fields[3]).decode(),
        values=fields[5],
        uncompressed=fields[6],
        dictionary=bool(encodings & _DICTIONARY),
        prefixes=bool(encodings & _PREFIXES),
    )


class _Thrift:
    """Values of Thrift's compact protocol: a struct is a dict by field number."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._place = 0

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = head & 15 == 1 if head & 15 in _BOOLEANS else self._value(head & 15)
        return fields

    def _value(self, kind: int) -> Any:
        if kind in _INTEGERS:
            return self._integer()
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind == _STRUCT:
            return self.struct()
        if kind in _LISTS:
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            return [self._value(head & 15) for _ in range(count)]
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _BYTE or kind in _BOOLEANS:
            return self._byte()
        if kind == _MAP:
            count = self._varint()
            kinds = self._byte() if count else 0
            return [(self._value(kinds >> 4), self._value(kinds & 15)) for _ in range(count)]
        raise ValueError(f"type {kind} is not a Thrift type")

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("holds an integer of more than 64 bits")
        return value | byte << shift

    def _byte(self) -> int:
        self._place += 1
        return self._content[self._place - 1]

    def _bytes(self, count: int) -> bytes:
        self._place += count
        if self._place > len(self._content):
            raise ValueError("ends in the middle of a value")
        return self._content[self._place - count : self._place]
