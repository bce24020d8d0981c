"""Models that the stages of one process share."""

from __future__ import annotations

import threading
from pathlib import Path

from grpo.policy.transformers.dtype import Dtype
from grpo.policy.transformers.model import TransformersPolicy, check_hash, load


class ModelCache:
    """LRU cache of up to `limit` policies by hash, shared by the stages of this process."""

    def __init__(self, limit: int = 3) -> None:
        self._limit = limit
        self._policies: dict[str, TransformersPolicy] = {}
        self._lock = threading.Lock()

    def put(self, policy: TransformersPolicy) -> None:
        """Add a policy for the next stage."""
        with self._lock:
            self._policies[policy.hash] = policy
            self._trim(policy.hash)

    def get(
        self, policy_hash: str, folder: Path, *, base: Path | None = None, frozen: Dtype = "float32"
    ) -> TransformersPolicy:
        """Get a policy from memory, or load it from `folder` and verify its hash.

        `base` is the model folder that the adapters in `folder` belong to, held in the dtype `frozen`.
        """
        with self._lock:
            policy = self._policies.pop(policy_hash, None)
            if policy is None:
                policy = load(folder, base=base, frozen=frozen)
                check_hash(policy, policy_hash, folder)
            self._policies[policy_hash] = policy
            self._trim(policy_hash)
            return policy

    def take(
        self, policy_hash: str, folder: Path, *, base: Path | None = None, frozen: Dtype = "float32"
    ) -> TransformersPolicy:
        """Get a policy and remove it, for a caller that changes its weights."""
        policy = self.get(policy_hash, folder, base=base, frozen=frozen)
        with self._lock:
            self._policies.pop(policy_hash, None)
        return policy

    def clear(self) -> None:
        """Remove all policies."""
        with self._lock:
            self._policies.clear()

    def _trim(self, newest: str) -> None:
        excess = max(0, len(self._policies) - self._limit)
        for policy_hash in [key for key in self._policies if key != newest][:excess]:
            del self._policies[policy_hash]


model_cache = ModelCache()
