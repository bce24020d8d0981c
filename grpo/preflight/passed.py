"""Memory of the checks that this process has just passed, so that a flow does not repeat the checks of its command."""

from __future__ import annotations

import time

from grpo.config.gates import Metric
from grpo.config.pipeline import PipelineConfig
from grpo.config.scenarios import HubDataSource
from grpo.identity.cache_identity import short_digest
from grpo.identity.code import external_digests
from grpo.policy.weights.registered import tracking_uri
from grpo.preflight.faults import EXPECTED
from grpo.preflight.table import Depth, Purpose
from grpo.scenarios.sources import content_hash
from grpo.storage.home import home

RECENT_S = 120.0
_passed: dict[tuple[str, Depth], tuple[float, Metric | None]] = {}
"""Time at which a config passed its checks, and the metric of gates that name none, by digest and depth."""


def identity_of(config: PipelineConfig, *, purpose: Purpose, whole: bool) -> str | None:
    """Digest of a config with its local sources, the user's code and the places of its records.

    None if sources or code are missing.
    """
    local = [source for source in config.scenarios.sources if not isinstance(source, HubDataSource)]
    try:
        read = [external_digests([config]), content_hash(local)]
    except EXPECTED:
        return None
    return short_digest([config.model_dump(mode="json"), purpose, whole, read, str(home()), tracking_uri()])


def recently_passed(identity: str | None) -> dict[Depth, Metric | None]:
    """Metric of gates that name none (`grpo.preflight.outcomes`), by the depth of the checks that were just passed.

    Checks that were passed earlier are forgotten, because files and servers change.
    """
    now = time.monotonic()
    for key in [key for key, (made, _) in _passed.items() if now - made > RECENT_S]:
        _passed.pop(key, None)
    return {depth: metric for (digest, depth), (_, metric) in list(_passed.items()) if digest == identity}


def has_passed(identity: str | None, depth: Depth, metric: Metric | None) -> None:
    """Remember that a config passed the checks of this depth, unless it is remembered already."""
    if identity is not None:
        _passed.setdefault((identity, depth), (time.monotonic(), metric))
