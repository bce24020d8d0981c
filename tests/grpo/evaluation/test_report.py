from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo.errors import DataError
from grpo.evaluation.html_report import render_page
from grpo.evaluation.report import read_report, write_report
from tests.grpo.evaluation.test_html_report import document


def test_a_report_is_three_files_and_reads_back(tmp_path: Path):
    """In a folder that is made, and again in the one that is there; the numbers are the document's."""
    folder = tmp_path / "runs" / "desk"
    for _ in range(2):
        written = write_report(document(), folder, data_docs=None)
        assert written == [folder / name for name in ("report.html", "report.json", "report.png")]
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "report.json", "report.png"]
    assert read_report(folder / "report.json") == document()
    assert (folder / "report.html").read_text() == render_page(document())
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")


def test_the_data_docs_are_copied_beside_the_report(tmp_path: Path):
    """Copied anew each time."""
    docs = tmp_path / "docs"
    docs.mkdir()
    for text in ("first", "second"):
        (docs / "index.html").write_text(text)
        write_report(document(), tmp_path / "run", data_docs=docs)
    assert (tmp_path / "run" / "data_docs" / "index.html").read_text() == "second"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read as a report"),
        ("no JSON", "cannot be read as a report"),
        ("[" * 100_000, "cannot be read as a report"),
        ("[]", "cannot be read as a report"),
        ('{"schema_version": "0"}', "has report schema version '0', but this release reads 2. Run its config again"),
        ('{"name": "x"}', "has report schema version None"),
        ('{"schema_version": "2"}', r"is not a report: Field required at \('name',\)"),
    ],
)
def test_an_invalid_report_is_refused(tmp_path: Path, content: str | None, message: str):
    """Missing, broken, of another schema, incomplete: the file is named."""
    path = tmp_path / "report.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=f"report.json {message}"):
        read_report(path)


def test_a_report_without_pass_rates_is_read(tmp_path: Path):
    """One that was written without pass@k and pass^k is read: nothing is known of them."""
    stored = json.loads(document().model_dump_json())
    del stored["evaluation"]["pass_at_k"], stored["evaluation"]["pass_hat_k"]
    (tmp_path / "report.json").write_text(json.dumps(stored))
    read = read_report(tmp_path / "report.json").evaluation
    assert read is not None
    assert (read.pass_at_k, read.pass_hat_k) == ((), ())


def test_the_first_of_several_errors_has_its_own_place(tmp_path: Path):
    """A name that is a number comes before missing fields."""
    path = tmp_path / "report.json"
    path.write_text('{"schema_version": "2", "name": 5}')
    with pytest.raises(DataError) as refusal:
        read_report(path)
    assert str(refusal.value) == f"{path} is not a report: Input should be a valid string at ('name',)"
