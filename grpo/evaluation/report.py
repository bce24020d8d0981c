"""Write and read the report: `report.json` with all numbers, `report.html` for people, `report.png` for trackers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from pydantic import ValidationError

from grpo.errors import DataError
from grpo.evaluation.schema import SCHEMA_VERSION, ReportDocument
from grpo.storage.files import storage_errors, write_atomically


def write_report(document: ReportDocument, folder: Path, *, data_docs: Path | None) -> list[Path]:
    """Write the three files, and a copy of the Data Docs to the same folder. Returns the written paths."""
    from grpo.evaluation.html_report import render_page  # matplotlib and its fonts take half a second
    from grpo.evaluation.plots import plot_png

    with storage_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        if data_docs is not None:
            shutil.copytree(data_docs, folder / "data_docs", dirs_exist_ok=True)
        (folder / "report.png").write_bytes(plot_png(document))
    write_atomically(folder / "report.json", document.model_dump_json(indent=1))
    write_atomically(folder / "report.html", render_page(document))
    return [folder / name for name in ("report.html", "report.json", "report.png")]


def read_report(path: Path) -> ReportDocument:
    """Read and validate `report.json`.

    Raises `DataError` for a file that is missing, broken, or of another schema version.
    """
    try:
        content = path.read_bytes()
        version = json.loads(content).get("schema_version")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as a report: {error}. Run its config again, which writes it") from error
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{path} has report schema version {version!r}, but this release reads {SCHEMA_VERSION}. Run its config "
            "again"
        )
    try:
        return ReportDocument.model_validate_json(content)
    except ValidationError as error:
        raise DataError(f"{path} is not a report: {error.errors()[0]['msg']} at {error.errors()[0]['loc']}") from error
