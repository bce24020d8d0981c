"""Commands of the store, on one that a stage has filled."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo.artifacts import ArtifactStore
from grpo_cli.app import app
from tests.doubles import put_file


def grpo(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with an artifact, a document, and a file of somebody."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    store = ArtifactStore(str(tmp_path / "store"))
    artifact = put_file(store, "split", ".json", lambda path: path.write_text("a"))
    store.documents.write(f"results/split-{'1a' * 32}", artifact.model_dump())
    (tmp_path / "store" / "notes.txt").write_text("mine")
    return store.uri


def test_a_store_is_moved_with_what_stays_and_the_next_step(source: str, tmp_path: Path):
    """A dry run first; what is not of a store is named and left."""
    target = str(tmp_path / "second")
    code, text = grpo("store", "move", source, target, "--dry-run")
    assert (code, Path(target).exists()) == (0, False)
    assert f"would move 1 artifacts and 1 documents from {source} to {target}" in text
    code, text = grpo("store", "move", source, target)
    assert code == 0
    assert f"moved 1 artifacts and 1 documents from {source} to {target}" in text
    assert "notes.txt stays in the old store, because it is not a file of a store" in text
    assert text.endswith(f"now set `store: {target}` in the configs")
    code, text = grpo("store", "move", target, f"{target}/inner")
    assert (code, "contain each other" in text) == (2, True), text


def test_unsigned_documents_of_an_earlier_version_are_signed(source: str):
    """Their number is printed; a second call finds none."""
    name, text = f"results/score-{'2b' * 32}", json.dumps({"x": 1}, separators=(",", ":"))
    digest = hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()
    Path(f"{source}/{name}.json").write_text(json.dumps({"sha256": digest, "document": {"x": 1}}), encoding="utf-8")
    assert grpo("store", "sign", source) == (0, f"1 documents of {source} are signed now")
    assert grpo("store", "sign", source) == (0, f"0 documents of {source} are signed now")
    assert ArtifactStore(source).documents.read(name) == {"x": 1}
