"""Spot check of served log-probabilities, before a retraining uses the log."""

from __future__ import annotations

from itertools import chain

from grpo.artifacts import local_path
from grpo.config.scenarios import ServedSource
from grpo.log.folder import ServedLog
from grpo.log.logged_logprobs import ServedCheck
from grpo.policy.catalog import load_weights
from grpo.policy.weights.registered import REGISTERED
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage

TURNS = 100


class VerificationResult(StageResult):
    """Result of the check."""

    check: ServedCheck


@stage
def verify_log(
    sources: tuple[ServedSource, ...], content: str, model: str, seed: int, store: str
) -> VerificationResult:
    """Compute the log-probabilities of a hundred randomly drawn turns of a registered model again, see `check_served`.

    `content` is the digest of the sources.
    """
    from grpo.learner.served_logprobs import check_served

    logs = ((ServedLog(local_path(source.path)), source.segments) for source in sources)
    entries = chain.from_iterable(log.read(segments) for log, segments in logs)
    check = check_served(
        entries, lambda version: load_weights(f"{REGISTERED}{version}"), model=model, turns=TURNS, seed=seed
    )
    return VerificationResult(check=check)
