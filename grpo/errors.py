"""Permanent errors by cause. A `GRPOError` is never retried; its message gives the value, the place and the remedy.

Transient errors keep the standard library's types (`ConnectionError`, `TimeoutError`, …).
"""


class GRPOError(Exception):
    """Permanent error: retrying will not help."""


class ConfigError(GRPOError):
    """A setting is unknown, of the wrong type, or contradicts another one."""


class DataError(GRPOError):
    """A source, scenario or table is invalid."""


class ArtifactError(GRPOError):
    """A stored artifact is missing, damaged, or differs from its digest."""


class RemovedError(ArtifactError):
    """A checkpoint was removed because nothing references it; it can be recomputed from its rollouts."""


class StorageError(GRPOError):
    """The store cannot be written or read: disk full, read-only, no permission."""


class PolicyError(GRPOError):
    """A model, tokenizer, chat template or checkpoint is unusable."""


class RewardError(GRPOError):
    """A reward returned an invalid value."""


class Unscored(RewardError):
    """This episode could not be scored; its reward is None."""


class NotApplicable(Unscored):
    """A reward component does not apply to this episode; the other components count alone."""


class BudgetError(GRPOError):
    """More episodes, records or rewards failed than the error budget allows."""


class RatioError(GRPOError):
    """The learner does not reproduce the sampler's log-probabilities, so the importance ratio is not 1 at the start."""


class NoLearningSignal(GRPOError):
    """No group of the rollout has two different rewards, so every advantage is 0."""


class Diverged(GRPOError):
    """A gradient or a loss is NaN or infinite."""


class NoEffect(GRPOError):
    """Training did not change the weights."""


class RegistryError(GRPOError):
    """The model registry refuses a request."""


class AddressError(RegistryError):
    """A model address is invalid, or its model or version does not exist or was not registered by a run."""


class NothingToRollBack(RegistryError):
    """No version before the champion exists."""


class PromotionRefused(RegistryError):
    """A version failed its gates, or was evaluated against another champion."""


class ReproductionError(GRPOError):
    """A source or base model of a registered version is missing or changed."""


class CapacityError(GRPOError):
    """The machine does not have enough memory."""
