"""Plan of a reproduction: inputs that differ from the version's inputs, and the amount of training."""

from __future__ import annotations

from grpo.identity.cache_identity import RunInputs
from grpo.identity.provenance import provenance
from grpo_flows.plans.outline import Outline
from grpo_flows.reproduce import reads_now, require_unchanged
from grpo_local import preflight
from grpo_tasks.registry import registry


def plan_reproduction(model: str) -> Outline:
    """Compare the inputs of a version with the present ones. Raises `ReproductionError` like the reproduction."""
    models = registry()
    version = models.resolve(model)
    then = models.provenance(version)
    config = preflight.check(require_unchanged(version.address, then), purpose="trial")
    inputs = RunInputs.of(config)
    now = provenance(
        config,
        sources=inputs.sources,
        scenarios=then.scenarios,
        model=inputs.model,
        external_digests=then.external_digests | reads_now(then) | inputs.external_digests,
        policies=then.policies,
    )
    pairs = then.differences(now).items()
    different = "; ".join(f"{name}: was {before}, is {today}" for name, (before, today) in pairs)
    count = config.training.iterations
    return Outline(
        title=f"reproduction of {version.address}",
        facts={
            "iterations": f"{count}, without the cache",
            "training episodes": f"at least {count * config.rollout.scenarios * config.rollout.group_size:,}",
            "sources and base model": "unchanged",
            "differences": different or "none: equal weights are expected on the CPU",
            "registered": "nothing",
        },
    )
