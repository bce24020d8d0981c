"""Write the run report and attach it to Prefect and MLflow. Not cached."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.evaluation.episode_pairs import select_pairs
from grpo.evaluation.report import write_report
from grpo.evaluation.schema import EpisodePair, ReportDocument
from grpo.identity.provenance import parameters
from grpo.policy.tokenizer import load_tokenizer
from grpo.tables import read_all
from grpo_tasks.execution.retries import PAUSES_S, is_transient
from grpo_tasks.registry import registry
from grpo_tasks.run_page import show_report


def shown_conversations(
    champion: Artifact, candidate: Artifact, checkpoint: Artifact, store: str
) -> tuple[EpisodePair, ...]:
    """Held-out conversations of both policies, side by side."""
    artifacts = ArtifactStore(store)
    tokenizer = load_tokenizer(artifacts.path(checkpoint))
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
    show_report(document, folder / "report.png", files[0])
    return files[0]
