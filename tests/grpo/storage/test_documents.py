from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo.errors import ArtifactError
from grpo.storage.documents import DocumentStore


def test_a_document_comes_back_as_it_was_written(tmp_path: Path):
    """Nested values, letters of other scripts, and numbers to the last digit; None for a missing one."""
    records = DocumentStore(str(tmp_path))
    document = {"mean": 0.1 + 0.2, "names": ["Zoë", None], "nested": {"verdict": "promote"}}
    records.write("results/score-1", document)
    assert records.read("results/score-1") == document
    assert records.read("results/score-2") is None
    assert records.names("results") == ["results/score-1"]
    records.remove("results/score-1")
    assert records.read("results/score-1") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("0.25", "0.95"),
        lambda text: text.replace("refuse", "promote"),
        lambda text: text[:-20],
        lambda text: "",
        lambda text: "[" * 100_000,
        lambda text: json.dumps({"metadata": {"serializer": {"type": "pickle"}}, "result": "gASVAA=="}),
    ],
)
def test_a_changed_document_is_refused_with_its_place(tmp_path: Path, change):
    """A number, a verdict, a cut, nothing, depth, and the file of another serializer."""
    records = DocumentStore(str(tmp_path))
    records.write("results/gate-1", {"mean": 0.25, "verdict": "refuse"})
    path = tmp_path / "results" / "gate-1.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(ArtifactError, match=r"results/gate-1\.json is damaged"):
        records.read("results/gate-1")


def test_a_document_under_another_name_is_refused(tmp_path: Path):
    """A result copied to the name of another one is refused."""
    records = DocumentStore(str(tmp_path))
    records.write("results/gate-1", {"verdict": "promote"})
    (tmp_path / "results" / "gate-1.json").rename(tmp_path / "results" / "gate-2.json")
    with pytest.raises(ArtifactError, match=r"gate-2\.json is damaged"):
        records.read("results/gate-2")
