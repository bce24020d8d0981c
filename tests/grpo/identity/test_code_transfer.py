"""The user's modules on another machine, which a process of its own plays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.environments import PythonEnvironmentSettings
from grpo.errors import ConfigError
from grpo.identity.code_transfer import check_modules, module_digests, write_code_artifact

RECEIVER = """
import sys

from grpo.artifacts import Artifact, ArtifactStore
from grpo.identity.code_transfer import receive_code
from grpo.user_objects import load_object

receive_code(ArtifactStore(sys.argv[1]), Artifact.model_validate_json(sys.argv[2]))
print(load_object("far_shop.desk:Desk").greeting)
"""


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Inputs that name a class of a package, with a module that it imports."""
    sources = {
        "__init__.py": "",
        "words.py": 'GREETING = "hello"\n',
        "desk.py": "from far_shop.words import GREETING\n\n\nclass Desk:\n    greeting = GREETING\n",
    }
    package = tmp_path / "sender" / "far_shop"
    package.mkdir(parents=True)
    for name, source in sources.items():
        (package / name).write_text(source)
    monkeypatch.syspath_prepend(tmp_path / "sender")
    return {"seed": 1, "environment": PythonEnvironmentSettings(kind="python", object="far_shop.desk:Desk")}


def test_the_users_modules_travel(inputs: dict[str, Any], tmp_path: Path):
    """A process without the package's folder imports both modules from the artifact."""
    store = ArtifactStore(str(tmp_path / "store"))
    code = write_code_artifact(store, inputs)
    assert code is not None
    files = sorted(str(path.relative_to(store.path(code))) for path in store.path(code).rglob("*.py"))
    assert files == ["far_shop/__init__.py", "far_shop/desk.py", "far_shop/words.py"]
    done = _receive(store, code, tmp_path)
    assert done.stdout.strip() == "hello", done.stderr


def test_inputs_without_modules_have_no_artifact(tmp_path: Path):
    assert write_code_artifact(ArtifactStore(str(tmp_path / "store")), {"seed": 1}) is None


def test_other_modules_are_refused(inputs: dict[str, Any]):
    """One file was changed after the other machine had taken the digests, one is missing there."""
    sent = module_digests(inputs)
    assert sorted(name.rpartition(" ")[2] for name in sent) == ["far_shop", "far_shop.desk", "far_shop.words"]
    check_modules(inputs, sent)
    words = next(name for name in sent if name.endswith("far_shop.words"))
    with pytest.raises(
        ConfigError, match=f"far_shop.words differs: this worker has digest {sent[words]}, the run .* other-digest"
    ):
        check_modules(inputs, {**sent, words: "other-digest"})
    with pytest.raises(
        ConfigError, match=r"far_shop\.absent differs: this worker has digest none, the run that sent the stage abc\."
    ):
        check_modules(inputs, {**sent, "far_shop.desk:Desk, module far_shop.absent": "abc"})


def _receive(store: ArtifactStore, code: Artifact, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RECEIVER, store.uri, code.model_dump_json()]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
