"""GGUF files by path, and the cache of their conversions."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.errors import PolicyError
from grpo.policy.weights.gguf_file import converted_folder, find_gguf
from tests.gguf_files import write_gguf
from tests.places import DESK_MODEL


def test_the_file_of_a_folder_is_the_only_one(tmp_path: Path):
    """A folder with config.json is a model folder; several files, and parts of one, are refused."""
    assert find_gguf(tmp_path) is find_gguf(tmp_path / "none.gguf") is find_gguf(Path("x" * 300)) is None
    (tmp_path / "a.gguf").touch()
    assert find_gguf(tmp_path) == find_gguf(tmp_path / "a.gguf") == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").touch()
    with pytest.raises(PolicyError, match=r"holds 2 GGUF files\. Set policy.model to one of a\.gguf, b\.gguf"):
        find_gguf(tmp_path)
    (tmp_path / "config.json").touch()
    assert find_gguf(tmp_path) is None
    part = tmp_path / "c-00002-of-00003.gguf"
    part.touch()
    with pytest.raises(PolicyError, match=r"is one of 3 parts\. Merge them with llama-gguf-split"):
        find_gguf(part)


@pytest.mark.filterwarnings("ignore")
def test_a_file_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The folder stays the same and untouched, until the file changes; a damaged one is converted again."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    write_gguf(DESK_MODEL, tmp_path / "desk.gguf")
    first = converted_folder(tmp_path / "desk.gguf")
    written = (first / "model.safetensors").stat().st_mtime_ns
    assert converted_folder(tmp_path / "desk.gguf") == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    (first / "model.safetensors").write_bytes(b"damaged")
    assert converted_folder(tmp_path / "desk.gguf") == first
    assert (first / "model.safetensors").stat().st_size > 1_000_000
    write_gguf(DESK_MODEL, tmp_path / "desk.gguf", settings={"attention.causal": "true"})
    assert converted_folder(tmp_path / "desk.gguf") == first  # the same weights, from another file
    assert len(list((tmp_path / "home" / "models" / "gguf").glob("*.json"))) == 2
