"""Model versions in MLflow: one per training run, with provenance, promotions and rollbacks.

    version      tags: run_key, policy, merged (the policy's hash with its adapters merged in), parent, checkpoint (uri
                 and sha256), champion (that it was evaluated against), verdict, digests
                 model metadata: provenance
    aliases      candidate: the newest version, champion: in service, previous: the target of a rollback
    model tags   promotion.0001 …: records of promotions and rollbacks, the last one decides what is in service

Versions and records are signed, because others can write to the registry (`grpo.policy.weights.registered`).

`run_key` is the digest of a run's config, data and code. If the same run registers again, it gets the same version.
"""

from grpo.policy.weights.promotion_records import ChampionChange
from grpo.policy.weights.registered import ModelVersion
from grpo.registry.lineage import Lineage
from grpo.registry.promotions import PromotionLog
from grpo.registry.provenance import Provenance
from grpo.registry.store import Registry

__all__ = ["ChampionChange", "Lineage", "ModelVersion", "PromotionLog", "Provenance", "Registry"]
