"""Registered versions as tests need them."""

from __future__ import annotations

from typing import Any

from grpo.policy.weights.promotion_records import Actor
from grpo.policy.weights.registered import signed_tags
from grpo.registry import Provenance, Registry

ANNA = Actor(user="anna", host="laptop", run="run-1")
BEN = Actor(user="ben", host="laptop")
"""In no flow run: whatever he asks for twice he wants twice."""


def make_provenance(**changes: Any) -> Provenance:
    """A run of two iterations."""
    fields: dict[str, Any] = {
        "config": {"name": "short", "policy": {"model": "models/base"}, "scenarios": {"sources": []}},
        "seed": 3,
        "sources": "5a",
        "scenarios": "5b",
        "model": "5c",
        "code": "c0de",
        "commit": "abc",
        "packages": {"torch": "2.13.0"},
        "machine": {"processor": "x86_64", "threads": "1"},
        "policies": ("base", "p1", "p2"),
        "champion": "base",
        "decision": "every gate passed",
        "checks": {"improvement in success": 0.04},
        **changes,
    }
    return Provenance(**fields)


def put_version(
    registry: Registry, model: str, checkpoint: str, *, against: str, verdict: str = "promote", **more: str
) -> int:
    """A version without a model in it, with these tags beside the usual ones: the number that it got."""
    client = registry.client
    if not client.search_registered_models(f"name = '{model}'"):
        client.create_registered_model(model)
    tags = {
        "run_key": f"{model}-{checkpoint}",
        "policy": checkpoint,
        "verdict": verdict,
        "checkpoint_uri": f"store/{checkpoint}",
        "checkpoint_sha256": checkpoint,
        "champion_sha256": against,
        **more,
    }
    signed = signed_tags(model, run_id="", tags=tags)
    return int(client.create_model_version(model, source="file:///nowhere", tags=signed).version)


def put_into_service(registry: Registry, model: str, version: int) -> None:
    """Promote a version, whatever its gates said."""
    registry.promotions(model).promote(version, reason="into service", by=ANNA, force=True)


def serving(registry: Registry, model: str) -> tuple[int | None, int | None]:
    """Versions that `champion` and `previous` name, as anyone who asks MLflow sees them."""
    aliases = registry.client.get_registered_model(model).aliases
    return tuple(int(aliases[name]) if name in aliases else None for name in ("champion", "previous"))  # type: ignore[return-value]
