"""Write the report of a retraining and attach it to Prefect and MLflow. Not cached."""

from __future__ import annotations

import json
from pathlib import Path

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from grpo.registry import ModelVersion
from grpo.retraining.reports import RetrainingReport
from grpo.storage.files import write_atomically
from grpo_tasks.registry import registry

FILE = "retraining.json"


@task(name="retraining-report", cache_policy=NO_CACHE, persist_result=False)
def retraining_report(document: RetrainingReport, version: ModelVersion | None, folder: Path) -> Path:
    """Write `retraining.json`, and attach triggers and curation to the run and to the version; returns the file."""
    path = folder / FILE
    write_atomically(path, document.model_dump_json(indent=1))
    curation = document.triggers.curation
    rows = [{"what": "records", "count": curation.records}, {"what": "accepted", "count": curation.accepted}]
    rows += [{"what": f"refused, {why}", "count": count} for why, count in curation.rejected.items()]
    rows += [{"what": f"redacted, {kind}", "count": count} for kind, count in curation.redacted.items()]
    rows += [{"what": f"serving log, {step}", "count": count} for step, count in curation.served.items()]
    if (served := document.served) is not None:
        rows += [{"what": "served turns whose log-probabilities are those of their version", "count": served.turns}]
        rows += [{"what": f"served turns, {why}", "count": count} for why, count in served.unchecked.items()]
    if (corrections := document.corrections) is not None:
        rows += [{"what": "corrections", "count": corrections.corrections}]
        rows += [{"what": "corrections, trained on", "count": corrections.used}]
        rows += [{"what": f"corrections, {why}", "count": count} for why, count in corrections.rejected.items()]
    if flow_run.get_id() is not None:
        create_table_artifact(rows, key="curation")
        create_markdown_artifact(f"# {document.name}: {document.verdict}\n\n{document.reason}\n", key="retraining")
    if version is not None:
        models = registry()
        triggers = json.dumps([result.model_dump() for result in document.triggers.results])
        for key, value in (("retraining", document.triggers.summary), ("retraining_triggers", triggers)):
            models.client.set_model_version_tag(version.name, str(version.version), key, value[:5000])
        models.log_files(version.run_id, [path])
    return path
