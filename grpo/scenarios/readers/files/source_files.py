"""Opening of source files: compression, encodings and size limits.

Compression is recognized by the first bytes of a file, because people rename files: gzip, bzip2, xz and Zstandard.
JSON may be in UTF-8, or in UTF-16 or UTF-32 if that is certain: from a byte order mark, or because the first character
of a JSON text is one of ASCII. The encoding of delimited text is found by `grpo.scenarios.readers.files.csv_dialect`.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from pydantic_core import from_json

from grpo.data_errors import MOST_COLUMNS, check_is_file, has_crowded_object, has_more_containers
from grpo.errors import DataError

_MOST_CONTAINERS = 2**22  # lists and objects of a document
LARGEST_DOCUMENT = 64 * 2**20  # bytes, because parsed JSON takes about ten times as much memory
_FORMATS = {
    b"PK\x03\x04": "an Excel workbook or another archive. Save the sheet as CSV UTF-8, or unpack the archive",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook. Save the sheet as CSV UTF-8",
    b"PAR1": "Parquet. Read it with kind parquet",
    b"ARROW1": "Arrow. Read it with kind arrow",
}
"""Formats by the first bytes of their files."""
MOST_BLANK = 16 * 2**20
"""Bytes of blanks in a row that a compressed file may unpack to. 4 MB of gzip can be 4 GB of blanks."""
_WINDOW = 128 * 2**20
"""Memory of an unpacker. xz allows 4 GiB, and its own largest preset takes 65 MiB. The others are bounded by their
formats and libraries: 32 KiB for gzip, 4 MiB for bzip2, 128 MiB for Zstandard."""


class _Xz:
    """Reader of an xz file with bounded memory, which `lzma.LZMAFile` does not have."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream = self._new_stream()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, and nothing at the end. Raises `LZMAError` or `EOFError` if the file is damaged."""
        rest = b""
        while True:
            if self._stream.eof:
                rest = self._stream.unused_data.lstrip(b"\x00") or self._file.read(_READ).lstrip(b"\x00")
                if not rest:
                    return b""
                self._stream = self._new_stream()
            elif self._stream.needs_input:
                rest = self._file.read(_READ)
                if not rest:
                    raise EOFError("it ends before its end marker")
            content = self._stream.decompress(rest, size)
            if content:
                return content
            rest = b""

    @staticmethod
    def _new_stream() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_WINDOW)


_UNPACKERS: dict[bytes, Callable[[io.BufferedReader], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": _Xz,
    b"\x28\xb5\x2f\xfd": lambda file: pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd"),
}
"""Decompressors by the first bytes of a file."""
_READ = 2**16
_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowInvalid, UnicodeDecodeError)
_PACKED = (".gz", ".gzip", ".bz2", ".xz", ".zst", ".zstd")
MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks. UTF-32 comes before UTF-16, because its marks begin like the marks of UTF-16."""
_UTF_16 = {b"{\x00": "utf-16-le", b"[\x00": "utf-16-le", b"\x00{": "utf-16-be", b"\x00[": "utf-16-be"}
"""First bytes of JSON in UTF-16 without a byte order mark."""


class _Decoded(io.RawIOBase):
    """Bytes that are made while they are read. If the file below is damaged, raises `DataError`."""

    def __init__(self, path: Path, file: IO[bytes], read: Callable[[int], bytes]):
        super().__init__()
        self._path, self._file, self._read = path, file, read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._read(len(buffer))
        except _DAMAGE as error:
            raise DataError(f"{self._path} is damaged: {error}. Fetch it again") from error
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


TABLES = {
    **dict.fromkeys((".csv", ".tsv", ".tab"), "csv"),
    ".parquet": "parquet",
    **dict.fromkeys((".arrow", ".feather"), "arrow"),
}
"""Formats of tables by the suffixes of their files."""


def data_suffix(path: Path) -> str:
    """Suffix that names the format, in lower case, without the suffix of a compression: `.json` of `A.JSON.gz`."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def open_source(path: Path) -> io.BufferedReader:
    """Open a source. Raises `DataError` if it cannot be opened, or is a pipe or a device."""
    check_is_file(path)
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise DataError(f"no source file at {path}. Correct the source's path in scenarios.sources") from error
    except OSError as error:
        raise DataError(f"source {path} cannot be read: {error.strerror}. It must be a readable file") from error


def open_text(path: Path) -> io.BufferedReader:
    """Open a source of text, and unpack it if it is compressed.

    Raises `DataError` if it cannot be opened or has another format, and while it is read if it is damaged.
    """
    with ExitStack() as stack:  # closes the file after an error
        file = stack.enter_context(open_source(path))
        head = file.peek(8)
        unpack = next((unpack for magic, unpack in _UNPACKERS.items() if head.startswith(magic)), None)
        if unpack is not None:
            file = io.BufferedReader(_Decoded(path, file, _bounded(path, unpack(file).read)))
            head = file.peek(8)
        for magic, name in _FORMATS.items():
            if head.startswith(magic):
                raise DataError(f"{path} is not text, but {name}")
        stack.pop_all()
    return file


def _bounded(path: Path, read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Bound the blanks in a row, over which a reader of lines would otherwise spend hours.

    The size is not bounded, because chats that share their prompts unpack to over 1,000 times the size of their file.
    Each line and each document has a bound of its own.
    """
    blank = 0

    def bounded(size: int) -> bytes:
        nonlocal blank
        content = read(size)
        blank = 0 if content.strip(b" \t\r\n\0") else blank + len(content)
        if blank > MOST_BLANK:
            raise DataError(
                f"{path} unpacks to over {MOST_BLANK >> 20} MiB of blanks in a row. Write it again without them"
            )
        return content

    return bounded


def open_json(path: Path) -> io.BufferedReader:
    """Open a source of JSON as UTF-8, see the module. Raises `DataError` like `open_text`."""
    file = open_text(path)
    head = file.peek(4)  # which `open_text` has read
    if head.startswith(codecs.BOM_UTF8):
        file.read(len(codecs.BOM_UTF8))
        return file
    mark = next((encoding for mark, encoding in MARKS if head.startswith(mark)), None)
    encoding = mark or _UTF_16.get(head[:2])
    if encoding is None:
        return file
    decoder = codecs.getincrementaldecoder(encoding)()

    def read(size: int) -> bytes:
        """Up to `size` bytes of UTF-8. A character has at least one byte in the file, and at most four in UTF-8."""
        text, chunk = "", b"-"
        while chunk and not text:
            chunk = file.read(max(1, size // 4))
            text = decoder.decode(chunk, final=not chunk)
        return text.encode()

    return io.BufferedReader(_Decoded(path, file, read))


def read_document(path: Path) -> Any:
    """Read a whole JSON file. Raises `DataError` if it is missing, too large or broken."""
    with open_json(path) as file:
        content = file.read(LARGEST_DOCUMENT + 1)
    if len(content) > LARGEST_DOCUMENT:
        raise DataError(
            f"{path} has more than {LARGEST_DOCUMENT // 2**20} MiB, too much for one JSON document. "
            "Write one record a line and read it with kind jsonl"
        )
    if has_more_containers(content, _MOST_CONTAINERS):
        raise DataError(
            f"{path} has more than {_MOST_CONTAINERS} lists and objects, too many for one JSON document. Write one "
            "record a line and read it with kind jsonl"
        )
    if has_crowded_object(content):
        raise DataError(
            f"{path} has an object with more than {MOST_COLUMNS} keys, too many for a record. Leave out keys, or write "
            "a list of records"
        )
    try:
        return from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise DataError(
            f"{path} is not a JSON document: {error}. Fix it, or write one record a line (jsonl)"
        ) from error
