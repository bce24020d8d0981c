"""Report of a study: a JSON document with every number, and the HTML page rendered from it."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from grpo.config.base import with_paths_from
from grpo.config.pipeline import PipelineConfig
from grpo.config.tuning import TuneConfig
from grpo.evaluation.html_report import templates
from grpo.storage.files import write_atomically
from grpo.tuning import plots
from grpo.tuning.study_summary import StudySummary

SCHEMA_VERSION: Final = "1"
PAGE, DOCUMENT, BEST = "study.html", "study.json", "best.yaml"


class StudyDocument(BaseModel):
    """Contents of a study's report. A change of meaning raises the schema version."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal["1"] = SCHEMA_VERSION
    name: str
    created: str
    """UTC, ISO 8601."""
    metric: str
    study: StudySummary
    start: str
    """Hash of the initial policy of every trial."""
    trained: int
    """Number of training scenarios."""
    validation: int
    """Number of validation scenarios."""
    code_digest: str
    best_config: str | None
    """Run config of the best trial, in YAML, or None if no trial is complete."""
    config: str
    """The study's configuration, as YAML."""


def write_study(document: StudyDocument, folder: Path) -> list[Path]:
    """Write page, document, figures and the best config to a folder. Returns the paths, the page first."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / DOCUMENT, document.model_dump_json(indent=1) + "\n")
    write_atomically(folder / PAGE, render_study(document))
    files = [folder / PAGE, folder / DOCUMENT]
    for name, picture in plots.pictures(document.study).items():
        (folder / name).write_bytes(picture)
        files.append(folder / name)
    if document.best_config is not None:
        write_atomically(folder / BEST, document.best_config)
        files.append(folder / BEST)
    return files


def render_study(document: StudyDocument) -> str:
    """Render the page. The same document gives the same text."""
    study = document.study
    template = templates(Path(__file__).parent).get_template("study.html.j2")
    return template.render(
        document=document,
        study=study,
        best=study.best_trial,
        history=plots.history(study),
        intermediate_evals=plots.intermediate_evals(study),
        importance=plots.importance(study),
    )


def best_yaml(search_config: TuneConfig, study: StudySummary, folder: Path) -> str:
    """Config of the best trial as YAML for a file in this folder: the base config with the best values."""
    best = study.best
    config: PipelineConfig = search_config.best(best.params)
    settings = with_paths_from(config, folder).model_dump(mode="json", exclude_unset=True)
    values = ", ".join(f"{path} = {value}" for path, value in best.params.items())
    head = (
        f"# Best of {study.ended} trials of study {study.name}: trial {best.number}, whose {search_config.metric} is\n"
        f"# {best.reward:.4g} on held-out scenarios. {values}\n"
    )
    return head + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
