"""Digests of the user's code and files that settings name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from grpo.config.scenarios import PythonSource, ScenarioSettings
from grpo.identity import code
from grpo.identity.code import executed_code, external_digests


def test_the_modules_and_files_of_a_python_source_are_in_its_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module that it names, the one that this imports, and the declared file."""
    (tmp_path / "counted_rows.py").write_text("import counted_words\n\ndef rows(count: int = 1):\n    yield {}\n")
    (tmp_path / "counted_words.py").write_text("WORDS = 1\n")
    (tmp_path / "tickets.csv").write_text("a")
    monkeypatch.syspath_prepend(tmp_path)
    declared = str(tmp_path / "tickets.csv")
    source = PythonSource(kind="python", object="counted_rows:rows", options={"count": 2}, reads=(declared,))
    settings = ScenarioSettings(sources=(source,))
    assert executed_code([settings]) is not None
    assert list(external_digests([settings])) == [
        "counted_rows:rows, module counted_rows",
        "counted_rows:rows, module counted_words",
        f"file {declared}",
    ]


def test_the_commit_is_that_of_a_repository_that_tracks_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A package that is installed below a user's repository is not in its commits."""

    def git(*arguments: str) -> str:
        user = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(
            ["git", *user, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    module = tmp_path / "grpo" / "identity" / "code.py"
    module.parent.mkdir(parents=True)
    module.write_text("one = 1\n")
    (tmp_path / "own.py").write_text("two = 2\n")
    git("init", "-q")
    git("add", "own.py")
    git("commit", "-qm", "own")
    monkeypatch.setattr(code, "__file__", str(module))
    assert code.commit() is None
    git("add", "grpo")
    git("commit", "-qm", "package")
    head = git("rev-parse", "HEAD").strip()
    assert code.commit() == head
    module.write_text("one = 2\n")
    assert code.commit() == f"{head}+"
