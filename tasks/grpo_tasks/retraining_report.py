"""Write the report of a retraining and attach it to Prefect and MLflow. Not cached."""

from __future__ import annotations

import json
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from grpo.registry import ModelVersion
from grpo.retraining.curation import CurationCounts
from grpo.retraining.mixture import MixtureCounts
from grpo.retraining.reports import RetrainingReport
from grpo.storage.files import write_atomically
from grpo_tasks.page_artifacts import show_table, show_text
from grpo_tasks.registry import registry

FILE = "retraining.json"


def write_retraining(document: RetrainingReport, folder: Path) -> Path:
    """Write `retraining.json`, which needs no server. Returns the file."""
    path = folder / FILE
    write_atomically(path, document.model_dump_json(indent=1))
    return path


def mixture_rows(mixture: MixtureCounts) -> list[dict[str, str | int]]:
    """Rows of the report: scenarios of both splits, scenarios left out by bounds, and the shares of keys and users."""
    rows: list[dict[str, str | int]] = [
        {"what": f"{split}, {kind}", "count": getattr(mixture, f"{field}_{part}")}
        for split, part in (("training split", "train"), ("held-out split", "heldout"))
        for kind, field in (("base scenarios", "base"), ("conversations", "conversations"))
    ]
    rows += [{"what": f"left out of {bound}", "count": count} for bound, count in mixture.left_out.items()]
    for kind, shares in (("key", mixture.key_shares), ("user", mixture.user_shares)):
        rows += [
            {
                "what": f"conversations of {kind} {share.name}: {share.train_share:.1%} of the training split, "
                f"{share.heldout_share:.1%} of the held-out split",
                "count": share.train + share.heldout,
            }
            for share in shares
        ]
    return rows


def curation_rows(curation: CurationCounts) -> list[dict[str, str | int]]:
    """Rows of the report: records that were read, accepted, refused and redacted."""
    rows: list[dict[str, str | int]] = [
        {"what": "records", "count": curation.records},
        {"what": "accepted", "count": curation.accepted},
    ]
    rows += [{"what": f"refused, {why}", "count": count} for why, count in curation.rejected.items()]
    rows += [{"what": f"redacted, {kind}", "count": count} for kind, count in curation.redacted.items()]
    return rows + [{"what": f"serving log, {step}", "count": count} for step, count in curation.served.items()]


@task(name="retraining-report", cache_policy=NO_CACHE, persist_result=False)
def retraining_report(document: RetrainingReport, version: ModelVersion | None, folder: Path) -> Path:
    """Write `retraining.json`, and attach triggers and curation to the run and to the version. Returns the file."""
    path = write_retraining(document, folder)
    rows: list[dict[str, str | int]] = []
    if document.triggers is not None:
        rows += curation_rows(document.triggers.curation)
    if (mixture := document.mixture) is not None:
        rows += mixture_rows(mixture)
    if (served := document.served) is not None:
        rows += [{"what": "served turns with confirmed log-probabilities", "count": served.turns}]
        rows += [{"what": f"served turns, {why}", "count": count} for why, count in served.unchecked.items()]
    if (corrections := document.corrections) is not None:
        rows += [{"what": "corrections", "count": corrections.corrections}]
        rows += [{"what": "corrections, trained on", "count": corrections.used}]
        rows += [{"what": f"corrections, {why}", "count": count} for why, count in corrections.rejected.items()]
    if flow_run.get_id() is not None:
        show_table(rows, key="curation")
        show_text(f"{document.name}: {document.verdict}", document.reason, key="retraining")
    if version is not None and document.triggers is not None:
        models = registry()
        triggers = json.dumps([result.model_dump() for result in document.triggers.results])
        for key, value in (("retraining", document.triggers.summary), ("retraining_triggers", triggers)):
            models.client.set_model_version_tag(version.name, str(version.version), key, value[:5000])
        models.log_files(version.run_id, [path])
    return path
