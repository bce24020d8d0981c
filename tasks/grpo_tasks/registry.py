"""The model registry that this process uses."""

from __future__ import annotations

from grpo.policy.weights.registered import tracking_uri
from grpo.registry import Registry
from grpo.storage.databases import is_database, is_new
from grpo.storage.home import home


def registry() -> Registry:
    """The registry of this machine, or the one that MLFLOW_TRACKING_URI names."""
    uri = tracking_uri()
    return Registry(uri, artifact_root=f"file://{home()}/mlartifacts" if is_database(uri) else None)


def existing_registry() -> Registry | None:
    """The registry. None if it is a file of this machine that no run has made yet, because opening it would make it."""
    return None if is_new(tracking_uri()) else registry()
