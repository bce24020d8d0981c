"""Fixtures: hand-written and published sources, and their ingestion."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import PublishedSource
from grpo.scenario import Scenario
from grpo.scenarios.ingest import IngestCounts, ingest
from grpo.scenarios.table import read_scenarios
from tests.places import PUBLISHED

Ingested = tuple[IngestCounts, list[Scenario]]


@pytest.fixture
def published() -> Callable[[str], Path]:
    """The folder of a published data set; the test is skipped where it is not at hand."""

    def find(name: str) -> Path:
        folder = PUBLISHED / name
        if not folder.exists():
            pytest.skip(f"the published files of {name} are not here")
        return folder

    return find


@pytest.fixture
def ingested(tmp_path: Path) -> Callable[[str, Path], Ingested]:
    """Ingest a data set; returns its counts and the scenarios of its table."""

    def run(kind: str, folder: Path) -> Ingested:
        source = PublishedSource.model_validate({"kind": kind, "path": str(folder)})
        table = tmp_path / f"{kind}.parquet"
        counts = ingest((source,), table, tmp_path / f"{kind}_quarantine.parquet", max_quarantined_fraction=1)
        return counts, list(read_scenarios(table))

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    """A folder with these files: text as it is, a `.jsonl` from its rows, anything else as one JSON document."""

    def write(files: dict[str, Any]) -> Path:
        root = tmp_path / "source"
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                path.write_text(content, encoding="utf-8", newline="")
            elif path.suffix == ".jsonl":
                path.write_text("".join(json.dumps(row) + "\n" for row in content))
            else:
                path.write_text(json.dumps(content))
        return root

    return write
