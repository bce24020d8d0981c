"""Models in MLflow: one version for each run that trained one, and which of them serves.

    version      tags: run_key, policy, merged (the policy's hash once its adapters, if any, are merged in), parent,
                 checkpoint (uri and sha256), champion (the one it was judged against), verdict, digests; in the model's
                 own metadata: its provenance
    aliases      candidate: the newest version; champion: the one in service; previous: where a rollback goes
    model tags   succession.0001 …: every promotion and rollback, with who, why, from what and when

`run_key` names what a run is (its config, data and code): the same run registers the same version again.
"""

from grpo.registry.lineage import Lineage
from grpo.registry.promotions import ChampionChange, PromotionLog
from grpo.registry.provenance import Provenance
from grpo.registry.store import ModelVersion, Registry

__all__ = ["ChampionChange", "Lineage", "ModelVersion", "PromotionLog", "Provenance", "Registry"]
