"""A run on Prefect's page: the bar of its iterations, its decision, gates, stages and curves."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from uuid import UUID

from prefect.artifacts import (
    create_image_artifact,
    create_progress_artifact,
    update_progress_artifact,
)

from grpo.evaluation.schema import GateCheck, ReportDocument
from grpo_tasks.page_artifacts import show_table, show_text

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


def show_report(document: ReportDocument, picture: Path, page: Path) -> None:
    """Show the decision, the gates, the stages and the curves in Prefect's page."""
    decision = document.decision
    show_text(
        f"{document.name}: {decision.verdict}",
        decision.reason,
        f"Report: {page}",
        key="decision",
        description=f"{decision.verdict}: {decision.reason}",
    )
    if decision.checks:
        passed = sum(check.passed for check in decision.checks)
        rows = [_row(check) for check in decision.checks]
        show_table(rows, key="gates", description=f"{passed} of {len(rows)} gates passed")
    show_table(
        [stage.model_dump() for stage in document.stages],
        key="stages",
        description=f"where {document.wall_s:.0f} s went, and what was cached",
    )
    encoded = base64.b64encode(picture.read_bytes()).decode()
    create_image_artifact(
        f"data:image/png;base64,{encoded}", key="curves", description="success by iteration and by category"
    )


def _row(check: GateCheck) -> dict[str, str]:
    """A gate as a row, with the relation in words."""
    return {
        "gate": check.name,
        "value": "–" if check.value is None else f"{check.value:.4g}",
        "must be": f"{_WORDS[check.relation]} {check.bound:g}",
        **{"passed": "yes" if check.passed else "no", "meaning": check.meaning},
    }
