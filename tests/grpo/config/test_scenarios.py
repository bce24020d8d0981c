"""Settings of sources: errors with their places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo.config.pipeline import load_config
from grpo.errors import ConfigError
from tests.doubles import changed, short_run


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ({"kind": "openai_messages", "path": "a", "users": "model"}, r"users: Input should be 'script' or 'goal'"),
        ({"kind": "sharegpt"}, r"path: Field required"),
        ({"kind": "langfuse", "path": "a", "columns": {"id": "x"}}, r"columns: Extra inputs are not permitted"),
        ({"kind": "csv", "path": "a", "columns": ["id"]}, r"columns: Input should be a valid dictionary"),
        ({"kind": "csv", "path": "a", "columns": {"the id": "x"}}, r"the id.*: String should match pattern"),
        ({"kind": "python"}, r"object: Field required"),
        (
            {"kind": "python", "object": "shop rows"},
            r"object: it is not of the form module:name\. Write shop\.rewards:",
        ),
        ({"kind": "python", "object": "shop.rows"}, r"object: it is not of the form module:name\. Write shop:rows "),
        ({"kind": "python", "object": "shop/stock.py:rows"}, r"module:name\. Write shop\.stock:rows "),
        ({"kind": "python", "object": "shop:rows", "options": {"rate": float("inf")}}, r"options.rate is inf"),
        ({"kind": "python", "object": "shop:rows", "function": "x"}, r"function: Extra inputs are not permitted"),
        ({"kind": "generator", "function": "shop:rows"}, r"'generator'.*'openai_messages'.*'python'"),
    ],
)
def test_a_wrong_source_is_refused_at_its_place(tmp_path: Path, source: dict[str, Any], problem: str):
    """On reading the config."""
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(changed(short_run(tmp_path), scenarios={"sources": [source]})))
    with pytest.raises(ConfigError, match=rf"(?s)scenarios\.sources\.0.*{problem}"):
        load_config(path)


def test_a_wrong_setting_of_the_replay_is_refused(tmp_path: Path):
    """It has no simulated user."""
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({**short_run(tmp_path), "environment": {"kind": "replay", "patience": 2}}))
    with pytest.raises(ConfigError, match=r"environment\.patience: Extra inputs are not permitted"):
        load_config(path)


def test_files_of_a_source_count_from_the_folder_of_the_config(tmp_path: Path):
    """Logs, tables with mapped columns, and further files of a function."""
    (tmp_path / "shop_rows.py").write_text("def rows():\n    yield {}\n")
    sources = [
        {"kind": "sharegpt", "path": "dump.json"},
        {"kind": "csv", "path": "t.csv", "columns": {"id": "x"}},
        {"kind": "python", "object": "shop_rows:rows", "reads": ["t.csv"]},
    ]
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(changed(short_run(tmp_path), scenarios={"sources": sources})))
    log, table, function = load_config(path).scenarios.sources
    assert (log.path, table.path) == (str(tmp_path / "dump.json"), str(tmp_path / "t.csv"))  # type: ignore[union-attr]
    assert function.reads == (str(tmp_path / "t.csv"),)  # type: ignore[union-attr]
