from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from grpo.evaluation.schema import ReportDocument
from grpo_flows.cli.app import app
from tests.grpo.evaluation.test_html_report import document


def _report(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["report", *arguments])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run in a home of its own: only report.json is left of it."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    folder = tmp_path / "weekly"
    folder.mkdir()
    (folder / "report.json").write_text(document().model_dump_json())
    return folder


@pytest.mark.parametrize("named", ["weekly", "{folder}", "{folder}/report.json"])
def test_a_run_is_found_by_name_and_by_path(run: Path, named: str):
    """Its page is written again, and its decision printed."""
    result = _report(named.format(folder=run))
    assert result.exit_code == 0
    assert "decision: promote" in result.output
    assert "held-out success candidate 0.813" in result.output
    assert "<html" in (run / "report.html").read_text()


def test_json_prints_the_document_itself(run: Path):
    """`--json` prints nothing else, and leaves the folder as it is."""
    result = _report("weekly", "--json")
    assert ReportDocument.model_validate_json(result.stdout) == document()
    assert [path.name for path in run.iterdir()] == ["report.json"]


def test_a_run_that_is_not_there_is_wrong_input(run: Path):
    """The error names those that are."""
    result = _report("monthly")
    assert result.exit_code == 2
    assert "there are weekly" in result.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as a report"),
        ("[1]", "cannot be read as a report"),
        (json.dumps({"schema_version": "0"}), "schema version '0', this code reads 2"),
        (json.dumps({"schema_version": "2", "name": "weekly"}), "Field required"),
    ],
)
def test_a_document_that_cannot_be_read_is_an_error_with_its_reason(run: Path, content: str, message: str):
    """Exit code 1, no traceback, and no page of it."""
    (run / "report.json").write_text(content)
    result = _report("weekly")
    assert result.exit_code == 1
    assert message in result.stderr
    assert not (run / "report.html").exists()


def test_runs_are_listed_with_their_results_the_newest_first(run: Path):
    """A report that cannot be read is left out, and named."""
    older = document().model_copy(update={"name": "daily", "created": "2020-01-02T03:04:05+00:00"})
    (run.parent / "daily").mkdir()
    (run.parent / "daily" / "report.json").write_text(older.model_dump_json())
    (run.parent / "torn").mkdir()
    (run.parent / "torn" / "report.json").write_text("{")
    result = CliRunner().invoke(app, ["runs"])
    assert result.exit_code == 0
    assert result.stdout.index(document().name) < result.stdout.index("daily")
    assert "2020-01-02 03:04" in result.stdout
    assert "0.813" in result.stdout
    assert "torn" in result.stderr
    listed = json.loads(CliRunner().invoke(app, ["runs", "--json"]).stdout)
    assert [row["name"] for row in listed] == [document().name, "daily"]


def test_a_home_without_runs_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Exit code 0."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    result = CliRunner().invoke(app, ["runs"])
    assert (result.exit_code, "no runs in" in result.stdout) == (0, True)
