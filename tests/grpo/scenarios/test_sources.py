"""Records of a source by its settings, and the content hash of its files."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from grpo.config.scenarios import CsvSource, FileSource, PublishedSource, PythonSource, Source, Tau2Source
from grpo.errors import DataError
from grpo.scenarios.reward_data import read_pairs
from grpo.scenarios.sources import content_hash, read_records
from tests.fuzz.samples import Sample, samples


@pytest.mark.parametrize(
    ("kind", "name", "content"),
    [("jsonl", "s.jsonl", "\n\n"), ("json", "s.json", "[]"), ("csv", "s.csv", "id,user_0\n")],
)
def test_a_source_without_records_is_an_error(tmp_path: Path, kind: str, name: str, content: str) -> None:
    """A file without records is a mistake, in every format."""
    path = tmp_path / name
    path.write_text(content)
    model = CsvSource if kind == "csv" else FileSource
    source = model.model_validate({"kind": kind, "path": str(path)})
    with pytest.raises(DataError, match=rf"{name} \({kind}\) is empty\. Fill it or take it out of scenarios\.sources"):
        list(read_records(source))


def no_records() -> list[Any]:
    return []


def test_an_empty_python_source_is_named_by_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function has no path to name."""
    module = ModuleType("empty_shop")
    module.no_records = no_records  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "empty_shop", module)
    with pytest.raises(DataError, match=r"source empty_shop:no_records \(python\) is empty"):
        list(read_records(PythonSource(kind="python", object="empty_shop:no_records")))


def sample(name: str) -> Sample:
    """A made-up source of this kind."""
    return next(sample for sample in samples() if sample.name == name)


def with_record(name: str, path: str, change: Callable[[Any], Any], folder: Path) -> PublishedSource:
    """A source of four records, of which the second is changed."""
    made = sample(name)
    for place, content in made.files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(content.encode())
    content = made.files[path]
    (folder / path).write_bytes(content.replace(1, change(content.items[1])).encode())  # type: ignore[union-attr]
    return PublishedSource.model_validate({"kind": name, "path": str(folder)})


def deal(item: dict[str, Any], shares: Any) -> dict[str, Any]:
    """A negotiation whose offer divides like this."""
    logs = [{**line, "task_data": {**line["task_data"], "issue2youget": shares}} for line in item["chat_logs"]]
    return {**item, "chat_logs": logs}


def products(item: dict[str, Any], text: str) -> dict[str, Any]:
    """A conversation about an order of these products."""
    return {**item, "scenario": {**item["scenario"], "order": {"products": text}}}


@pytest.mark.parametrize(
    ("name", "path", "change", "problem"),
    [
        ("casino_negotiation", "casino_train.json", lambda item: deal(item, [1]), "not as published: AttributeError"),
        ("casino_negotiation", "casino_train.json", lambda item: deal(item, {"Food": "@inf@"}), "OverflowError"),
        ("cima_tutoring", "dataset.json", lambda item: {**item, "grammarRules": "[" * 100_000}, "RecursionError"),
        ("cima_tutoring", "dataset.json", lambda item: {**item, "grammarRules": "[7]"}, "TypeError"),
        ("abcd_sample", "abcd_sample.json", lambda item: products(item, "-" * 100_000 + "1"), "MemoryError"),
        ("abcd_sample", "abcd_sample.json", lambda item: products(item, "1+" * 100_000 + "1"), "RecursionError"),
    ],
)
def test_a_bad_record_of_a_published_set_is_quarantined_alone(
    tmp_path: Path, name: str, path: str, change: Callable[[Any], Any], problem: str
) -> None:
    """Any exception of a library is a problem of its record; three of four records are read."""
    records = list(read_records(with_record(name, path, change, tmp_path)))
    assert [record.problem is None for record in records] == [True, False, True, True]
    assert records[1].problem is not None
    assert problem in records[1].problem


@pytest.mark.parametrize("call", ["-" * 100_000 + "1", "sort(" + "1+" * 100_000 + "1)", "sort(**{'file_name': 'x'})"])
def test_a_bad_answer_of_bfcl_quarantines_its_task_alone(tmp_path: Path, call: str) -> None:
    """The answers are Python in strings, parsed by a parser that has limits of its own."""
    path = "possible_answer/BFCL_v4_multi_turn_base.json"
    source = with_record("bfcl_multi_turn", path, lambda item: {**item, "ground_truth": [[call]]}, tmp_path)
    assert [record.problem is None for record in read_records(source)] == [True, False, True, True]


def test_a_bad_database_of_tau2_is_an_error_with_its_place(tmp_path: Path) -> None:
    """It belongs to all tasks."""
    made = sample("tau2_bench")
    for place, content in made.files.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(content.encode())
    (tmp_path / "retail" / "db.json").write_text('{"users": {"ann": 7}, "orders": {}, "products": {}}')
    with pytest.raises(DataError, match=r"\(tau2_bench\) cannot be read at its beginning: TypeError"):
        list(read_records(Tau2Source(kind="tau2_bench", path=str(tmp_path))))


def test_bad_categories_of_banking77_are_an_error_with_their_place(tmp_path: Path) -> None:
    """A list in a list cannot be in a set."""
    with (tmp_path / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "category"], ["Where?", "card"]])
    (tmp_path / "categories.json").write_text('[["card"]]')
    with pytest.raises(DataError, match=r"\(banking77\) cannot be read at its beginning: TypeError: unhashable"):
        list(read_records(PublishedSource(kind="banking77", path=str(tmp_path))))


def test_a_moment_of_bridge_whose_id_is_a_list_is_quarantined_alone(tmp_path: Path) -> None:
    """The ids of all moments are read first."""
    moments = sample("bridge_math_tutoring").files["train.json"].items
    (tmp_path / "train.json").write_text(json.dumps([{**moments[0], "c_id": ["a"]}, *moments[1:]]))
    (tmp_path / "validation.json").write_text("[]")
    parsed = read_pairs("bridge_math_tutoring", tmp_path)
    assert (len(parsed.items), len(parsed.quarantined)) == (3, 1)


def sources(folder: Path) -> dict[str, Source]:
    """Two sources over one folder."""
    return {
        "gsm8k": PublishedSource(kind="gsm8k", path=str(folder)),
        "telecom": Tau2Source(kind="tau2_bench", path=str(folder), domain="telecom"),
    }


@pytest.mark.parametrize(("name", "file"), [("gsm8k", "train.jsonl"), ("telecom", "telecom/db.toml")])
def test_a_changed_file_changes_the_content_hash(name: str, file: str, tmp_path: Path) -> None:
    """A database in TOML counts like any other file."""
    (tmp_path / "telecom").mkdir()
    for path in ("train.jsonl", "telecom/db.toml"):
        (tmp_path / path).write_text("a")
    before = content_hash([sources(tmp_path)[name]])
    assert content_hash([sources(tmp_path)[name]]) == before
    (tmp_path / file).write_text("b")
    assert content_hash([sources(tmp_path)[name]]) != before


def test_a_renamed_file_changes_the_content_hash(tmp_path: Path) -> None:
    """The names of files choose the split."""
    (tmp_path / "train.jsonl").write_text("a")
    before = content_hash([sources(tmp_path)["gsm8k"]])
    (tmp_path / "train.jsonl").rename(tmp_path / "test.jsonl")
    assert content_hash([sources(tmp_path)["gsm8k"]]) != before


def test_a_changed_file_behind_a_link_changes_the_content_hash(tmp_path: Path) -> None:
    """Readers follow a link to a folder on another disk. A link to the folder that it is in ends."""
    root = tmp_path / "root"
    for folder in (root, tmp_path / "disk"):
        folder.mkdir()
    (root / "train.jsonl").write_text("a")
    (tmp_path / "disk" / "train.jsonl").write_text("a")
    (root / "parts").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "again").symlink_to(root)
    before = content_hash([sources(root)["gsm8k"]])
    (tmp_path / "disk" / "train.jsonl").write_text("b")
    assert content_hash([sources(root)["gsm8k"]]) != before


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """The error has the kind of its source."""
    with pytest.raises(DataError, match=r"no file or folder .*nowhere for source gsm8k"):
        content_hash([sources(tmp_path / "nowhere")["gsm8k"]])


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet", "arrow"])
def test_a_pipe_or_a_device_is_not_a_source(tmp_path: Path, kind: str) -> None:
    """Nobody writes into the pipe, and the device has no end: both would be read for ever."""
    pipe, device = tmp_path / f"pipe.{kind}", tmp_path / f"device.{kind}"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    model = CsvSource if kind == "csv" else FileSource
    for path in (pipe, device):
        source = model.model_validate({"kind": kind, "path": str(path)})
        with pytest.raises(DataError, match=r"is a pipe or a device.*Store it in a file"):
            content_hash([source])
        with pytest.raises(DataError, match=r"is a pipe or a device.*Store it in a file"):
            list(read_records(source))
