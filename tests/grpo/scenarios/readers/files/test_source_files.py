"""Compressed files and encodings: the same records, whatever the bytes are."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from grpo.errors import DataError
from grpo.scenarios.readers.exports.record_file import read_objects
from grpo.scenarios.readers.files.csv_file import read_cells
from grpo.scenarios.readers.files.source_files import data_suffix, open_text

LINES = '{"id": "a", "text": "né"}\n{"id": "b", "text": "𝄞"}\n'
RECORDS = [{"id": "a", "text": "né"}, {"id": "b", "text": "𝄞"}]


def _zstandard(content: bytes) -> bytes:
    packed: bytes = pa.compress(content, "zstd", asbytes=True)
    return packed


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": _zstandard,
}


@pytest.mark.parametrize("suffix", PACKED)
def test_a_compressed_file_is_read_through(tmp_path: Path, suffix: str) -> None:
    """JSON lines, a JSON document and delimited text, by their first bytes and not by their names."""
    pack = PACKED[suffix]
    for name in (f"chats.jsonl.{suffix}", "chats.jsonl"):
        (tmp_path / name).write_bytes(pack(LINES.encode()))
        assert [record.data for record in read_objects(tmp_path / name)] == RECORDS
    document = tmp_path / f"chats.json.{suffix}"
    document.write_bytes(pack(b'[\n{"id": "a"}]'))
    assert [record.data for record in read_objects(document)] == [{"id": "a"}]
    table = tmp_path / f"rows.tsv.{suffix}"
    table.write_bytes(pack(b"id\ttext\na\tone, two\n"))
    assert [record.data for record in read_cells(table, required=("id",))] == [{"id": "a", "text": "one, two"}]


@pytest.mark.parametrize("suffix", PACKED)
def test_a_compressed_file_that_is_cut_short_is_an_error(tmp_path: Path, suffix: str) -> None:
    """A download that stopped must not give fewer records without a word."""
    path = tmp_path / f"chats.jsonl.{suffix}"
    path.write_bytes(PACKED[suffix](LINES.encode() * 50)[:-12])
    with pytest.raises(DataError, match=r"chats\.jsonl\.\w+ is damaged: .*Fetch it again"):
        list(read_objects(path))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be"])
def test_json_in_another_encoding_of_unicode_is_read(tmp_path: Path, encoding: str) -> None:
    """With a byte order mark, and UTF-16 without one, because JSON begins with a character of ASCII."""
    path = tmp_path / "chats.jsonl"
    path.write_bytes(LINES.encode(encoding))
    assert [record.data for record in read_objects(path)] == RECORDS


def test_utf16_that_is_cut_in_a_character_is_an_error(tmp_path: Path) -> None:
    """One byte less than the whole text."""
    path = tmp_path / "chats.jsonl"
    path.write_bytes(LINES.encode("utf-16")[:-1])
    with pytest.raises(DataError, match=r"is damaged: .*truncated data"):
        list(read_objects(path))


def test_a_chat_that_is_only_a_list_of_messages_is_a_record(tmp_path: Path) -> None:
    """A document with a list of such lists."""
    path = tmp_path / "chats.json"
    path.write_text('[[{"role": "user", "content": "Hi."}]]')
    assert [record.data for record in read_objects(path)] == [{"messages": [{"role": "user", "content": "Hi."}]}]


def test_the_suffix_names_the_format_below_the_compression() -> None:
    """In any case."""
    assert [data_suffix(Path(name)) for name in ("a.JSON.gz", "b.v2.csv", "c.zst", "d")] == [".json", ".csv", "", ""]


def test_an_archive_inside_of_a_compressed_file_says_what_it_is(tmp_path: Path) -> None:
    """The format is looked at again after unpacking."""
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"PK\x03\x04" + b"\x00" * 40))
    with pytest.raises(DataError, match="is not text, but an Excel workbook or another archive"):
        open_text(path)


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("piece", [b" ", b"\r\n", b"\0"])
def test_a_file_that_unpacks_to_blanks_is_refused(tmp_path: Path, suffix: str, piece: bytes) -> None:
    """17 MiB of them. A bomb has thousands of times as much."""
    path = tmp_path / f"bomb.jsonl.{suffix}"
    path.write_bytes(PACKED[suffix](piece * (17 * 2**20 // len(piece))))
    with open_text(path) as file, pytest.raises(DataError, match=r"bomb\.jsonl\.\w+ unpacks to over 16 MiB of blanks"):
        file.read(20 * 2**20)


def test_a_large_file_may_unpack_to_many_times_its_size(tmp_path: Path) -> None:
    """Chats that share a prompt of 20 kB: 80 MiB, of which 1 in 1,000 characters is new."""
    prompt, random = "You are a support agent. " * 800, Random(3)
    chats = (prompt + f"{random.getrandbits(80):020x}\n" for _ in range(80 * 2**20 // 20_021))
    path = tmp_path / "chats.txt.gz"
    path.write_bytes(gzip.compress("".join(chats).encode(), compresslevel=1))
    assert path.stat().st_size < 80 * 2**20 / 100
    with open_text(path) as file:
        assert sum(len(chunk) for chunk in iter(lambda: file.read(2**20), b"")) > 79 * 2**20


def test_an_xz_file_cannot_ask_for_gigabytes_of_memory(tmp_path: Path) -> None:
    """Its head names the size of the dictionary, up to 4 GiB. The second stream does here."""
    window = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**29}]
    path = tmp_path / "chats.jsonl.xz"
    path.write_bytes(lzma.compress(LINES.encode()) + bytes(8) + lzma.compress(LINES.encode()))
    assert [record.data for record in read_objects(path)] == RECORDS * 2
    path.write_bytes(lzma.compress(LINES.encode()) + lzma.compress(LINES.encode(), filters=window))
    with pytest.raises(DataError, match=r"is damaged: Memory usage limit exceeded"):
        list(read_objects(path))
