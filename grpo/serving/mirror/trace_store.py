"""MLflow traces of one experiment: write, search and delete them through the tracking server or its database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from grpo.errors import ConfigError
from grpo.http_client import get
from grpo.policy.weights.registry_pages import all_pages
from grpo.registry.store import Registry
from grpo.serving.mirror.traces import TURN_TAG
from grpo.storage.databases import is_database

if TYPE_CHECKING:
    from mlflow.entities import Assessment, Span, TraceInfo
    from mlflow.tracing.client import TracingClient

_PAGE = 200  # traces
_PROBE_S = 5.0
_TEMPORARY = (401, 403, 408, 429)
"""Statuses below 500 for which another try may succeed."""


class TraceStore:
    """Traces of an experiment. The experiment is created on first use. Errors of MLflow propagate."""

    def __init__(self, tracking_uri: str, experiment: str) -> None:
        self.tracking_uri = tracking_uri
        self.experiment = experiment

    def check(self) -> None:
        """Raise an error at once if the server does not answer, because MLflow's own client retries for minutes.

        Raises `ConfigError` if the experiment is deleted, because it would refuse every trace.
        """
        if not is_database(self.tracking_uri):
            get(f"{self.tracking_uri.rstrip('/')}/health", seconds=_PROBE_S).raise_for_status()
        experiment = self._registry.client.get_experiment(self.experiment_id)
        if experiment.lifecycle_stage != "active":
            raise ConfigError(
                f"experiment {self.experiment} of {self.tracking_uri} is deleted. Restore it in MLflow, or name "
                "another one in mirror.experiment"
            )

    @cached_property
    def experiment_id(self) -> str:
        """Id of the experiment."""
        return self._registry.experiment(self.experiment)

    def write(self, traces: Sequence[tuple[TraceInfo, Sequence[Span]]]) -> None:
        """Write traces with their spans. A trace that exists already is overwritten."""
        if not traces:
            return
        for info, _ in traces:
            self._traces.start_trace(info)
        try:
            self._traces.log_spans(self.experiment_id, [span for _, spans in traces for span in spans])
        except NotImplementedError:  # if a server does not tell its version in time, MLflow caches that for good
            getattr(self._traces.store, "_get_server_version").cache_clear()  # noqa: B009
            raise

    def assess(self, trace_id: str, assessment: Assessment) -> None:
        """Write an assessment, unless the trace has it already."""
        from mlflow.exceptions import MlflowException

        try:
            self._traces.log_assessment(trace_id, assessment)
        except MlflowException:
            if not self._is_assessed(trace_id, assessment.assessment_id):
                raise

    def has(self, trace_id: str) -> bool:
        """True if the experiment has the trace."""
        return bool(self._search(f"trace.request_id = '{trace_id}'", max_results=1))

    def assessed(self, names: Sequence[str]) -> Iterator[tuple[TraceInfo, Assessment]]:
        """Assessments with these names, each with the info of its trace."""
        for kind, name in ((kind, name) for kind in ("feedback", "expectation") for name in names):
            for info in self._pages(f"{kind}.`{name}` IS NOT NULL"):
                yield from ((info, item) for item in info.assessments if item.name == name and hasattr(item, kind))

    def delete(self, condition: str) -> int:
        """Delete the traces of served turns that fulfil a condition. Returns their number.

        Other traces of the experiment stay.
        """
        count = 0
        while traces := self._search(f"{condition} AND tag.`{TURN_TAG}` IS NOT NULL", max_results=_PAGE):
            ids = [trace.info.trace_id for trace in traces]
            self._traces.delete_traces(self.experiment_id, trace_ids=ids)
            count += len(ids)
        return count

    def _pages(self, condition: str) -> Iterator[TraceInfo]:
        return (trace.info for trace in all_pages(self._search, condition, page=_PAGE))

    def _search(self, condition: str, *, max_results: int, page_token: str | None = None) -> Any:
        return self._traces.search_traces(
            locations=[self.experiment_id],
            filter_string=condition,
            max_results=max_results,
            page_token=page_token,
            include_spans=False,
        )

    def _is_assessed(self, trace_id: str, assessment_id: str | None) -> bool:
        traces = self._search(f"trace.request_id = '{trace_id}'", max_results=1)
        return any(item.assessment_id == assessment_id for trace in traces for item in trace.info.assessments)

    @cached_property
    def _registry(self) -> Registry:
        return Registry(self.tracking_uri)

    @cached_property
    def _traces(self) -> TracingClient:
        from mlflow.tracing.client import TracingClient

        return TracingClient(self.tracking_uri)


def is_refusal(error: Exception) -> bool:
    """True if MLflow refuses the record itself, so that a second try would fail as well."""
    from mlflow.exceptions import MlflowException

    status = error.get_http_status_code() if isinstance(error, MlflowException) else 500
    return 400 <= status < 500 and status not in _TEMPORARY
