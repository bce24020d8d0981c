from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from grpo.errors import ArtifactError
from grpo.storage.documents import DocumentStore


def test_a_document_comes_back_as_it_was_written(tmp_path: Path):
    """Nested values, letters of other scripts, and numbers to the last digit; None for a missing one."""
    records = DocumentStore(str(tmp_path))
    document = {"mean": 0.1 + 0.2, "names": ["Zoë", None], "nested": {"verdict": "promote"}}
    name = f"results/score-{'1a' * 32}"
    records.write(name, document)
    assert records.read(name) == document
    assert records.read("results/score-2") is None
    assert records.names("results") == [name]
    records.remove(name)
    assert records.read(name) is None


@pytest.mark.parametrize("store", ["", "memory://documents-of-others"], ids=["folder", "objects"])
def test_only_documents_of_this_store_are_listed(tmp_path: Path, store: str):
    """A digest at the end of the name, at its depth; what others put beside and below is left out."""
    records, digest = DocumentStore(store or str(tmp_path)), "1a" * 32
    for name in (
        f"kept/run.x/{digest}",
        f"results/score-{digest}",
        f"results/{digest}/artifacts/{digest}",
        "results/x",
    ):
        records.write(name, {})
    assert records.names("results") == [f"results/score-{digest}"]
    assert records.names("kept") == []
    assert records.names("kept", depth=2) == [f"kept/run.x/{digest}"]
    assert records.names("missing") == []


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


def test_a_document_that_somebody_else_wrote_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whoever can write to a store can write weights and a digest; the key is in the home, or the environment."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    records = DocumentStore(str(tmp_path))
    document, name = {"checkpoint": "poisoned"}, "results/train-1"
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()
    path = tmp_path / "results" / "train-1.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"sha256": digest, "document": document}))
    with pytest.raises(ArtifactError, match=r"is damaged: it is not signed\. `grpo store sign"):
        records.read(name)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("GRPO_SIGNING_KEY", "k" * 32)
        records.write(name, document)
    records.write("results/other", {})
    with pytest.raises(ArtifactError, match=r"was signed with another key\. Give all machines that share the store"):
        records.read(name)


def test_documents_of_an_earlier_version_are_signed_if_their_digest_holds(tmp_path: Path):
    """Once, by whoever trusts the store; one that was changed stays as it is."""
    records = DocumentStore(str(tmp_path))
    (tmp_path / "results").mkdir()
    for name, content in (("results/a", {"x": 1}), ("results/b", {"x": 2})):
        text = json.dumps({"x": 1}, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()
        (tmp_path / f"{name}.json").write_text(json.dumps({"sha256": digest, "document": content}))
    assert [records.sign(name) for name in ("results/a", "results/b", "results/c", "results/a")] == [
        *(True, False, False, False),
    ]
    assert records.read("results/a") == {"x": 1}
    with pytest.raises(ArtifactError, match="is not signed"):
        records.read("results/b")
