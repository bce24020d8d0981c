"""Write the run report, attach it to Prefect and MLflow, and show a run's progress in Prefect's page. Not cached."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from uuid import UUID

from prefect import task
from prefect.artifacts import (
    create_image_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.evaluation.episode_pairs import select_pairs
from grpo.evaluation.report import write_report
from grpo.evaluation.schema import EpisodePair, GateCheck, ReportDocument
from grpo.identity.provenance import parameters
from grpo.learner.checkpoints import load_policy
from grpo.tables import read_all
from grpo_tasks.registry import registry
from grpo_tasks.stage import PAUSES_S, is_transient

_WORDS = {">": "above", ">=": "at least", "<=": "at most"}
_PAUSE_S = 1.0


@contextmanager
def iteration_progress(iterations: int) -> Iterator[Callable[[int], None]]:
    """Progress bar in Prefect's page. Yields a function that takes the number of finished iterations.

    The bar updates the server not more than once per second, so that a cached run does not wait for its bar.
    """

    def text(done: int) -> str:
        return f"{done} of {iterations} iterations of rollout, score and train"

    artifact = cast(UUID, create_progress_artifact(0.0, key="iterations", description=text(0)))
    updated = float("-inf")

    def update(done: int) -> None:
        nonlocal updated
        if done == iterations or time.monotonic() - updated >= _PAUSE_S:
            updated = time.monotonic()
            update_progress_artifact(artifact, 100.0 * done / iterations, description=text(done))

    yield update


def shown_conversations(
    champion: Artifact, candidate: Artifact, checkpoint: Artifact, store: str
) -> tuple[EpisodePair, ...]:
    """Held-out conversations of both policies, side by side."""
    artifacts = ArtifactStore(store)
    tokenizer = load_policy(artifacts, checkpoint).tokenizer
    before, after = (read_all([artifacts.path(artifact)]) for artifact in (champion, candidate))
    return select_pairs(before, after, lambda ids: str(tokenizer.decode(ids)))


@task(
    name="report",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=len(PAUSES_S),
    retry_delay_seconds=list(PAUSES_S),
    retry_condition_fn=is_transient,
)
def report(document: ReportDocument, config: PipelineConfig, run_key: str, docs: Artifact | None, folder: Path) -> Path:
    """Write the report and attach it to the records of both services. Returns the page."""
    data_docs = ArtifactStore(config.store).path(docs) if docs is not None else None
    files = write_report(document, folder, data_docs=data_docs)
    models = registry()
    run_id = models.open_run(config.registry.experiment, config.name, run_key=run_key, params=parameters(config))
    models.log_metrics(run_id, document.series)
    models.log_files(run_id, files)
    models.close_run(run_id, "FAILED" if document.decision.verdict == "failed" else "FINISHED")
    _attach(document, folder / "report.png", files[0])
    return files[0]


def _attach(document: ReportDocument, picture: Path, page: Path) -> None:
    """Show the decision, the gates, the stages and the curves in Prefect's page."""
    decision = document.decision
    create_markdown_artifact(
        f"# {document.name}: {decision.verdict}\n\n{decision.reason}\n\nReport: `{page}`",
        key="decision",
        description=f"{decision.verdict}: {decision.reason}",
    )
    if decision.checks:
        passed = sum(check.passed for check in decision.checks)
        rows = [_row(check) for check in decision.checks]
        create_table_artifact(rows, key="gates", description=f"{passed} of {len(rows)} gates passed")
    create_table_artifact(
        [stage.model_dump() for stage in document.stages],
        key="stages",
        description=f"where {document.wall_s:.0f} s went, and what was cached",
    )
    encoded = base64.b64encode(picture.read_bytes()).decode()
    create_image_artifact(
        f"data:image/png;base64,{encoded}", key="curves", description="success by iteration and by category"
    )


def _row(check: GateCheck) -> dict[str, str]:
    """A gate as Prefect's page can show it. A cell is read as Markdown, in which > would begin a quotation."""
    return {
        "gate": check.name,
        "value": "–" if check.value is None else f"{check.value:.4g}",
        "must be": f"{_WORDS[check.relation]} {check.bound:g}",
        **{"passed": "yes" if check.passed else "no", "meaning": check.meaning},
    }
