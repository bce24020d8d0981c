"""The identity of sources is what their bytes are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import PublishedSource, Source, Tau2Source
from grpo.errors import DataError
from grpo.scenarios.fingerprint import content_hash


def sources(folder: Path) -> dict[str, Source]:
    """A source of each kind over one folder."""
    return {
        "gsm8k": PublishedSource(kind="gsm8k", path=str(folder)),
        "telecom": Tau2Source(kind="tau2_bench", path=str(folder), domain="telecom"),
    }


@pytest.mark.parametrize(("name", "file"), [("gsm8k", "train.jsonl"), ("telecom", "telecom/db.toml")])
def test_a_changed_file_is_another_source(name: str, file: str, folder: Any) -> None:
    """A database in TOML counts like any other file."""
    root = folder({"train.jsonl": "a", "telecom/db.toml": "a"})
    before = content_hash([sources(root)[name]])
    assert content_hash([sources(root)[name]]) == before
    (root / file).write_text("b")
    assert content_hash([sources(root)[name]]) != before


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """With the kind of its source."""
    with pytest.raises(DataError, match=r"no file or folder .*nowhere for source gsm8k"):
        content_hash([sources(tmp_path / "nowhere")["gsm8k"]])
