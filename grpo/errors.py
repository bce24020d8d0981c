"""What can go wrong, by who has to act.

Every message gives the value, the place and the remedy. A `GRPOError` is never retried: the same input
fails the same way. Transient faults keep the standard library's types (`ConnectionError`, `TimeoutError`, …).
"""


class GRPOError(Exception):
    """The run cannot go on as it was asked to; a second try would fail in the same way."""


class ConfigError(GRPOError):
    """A setting is unknown, of the wrong type, or contradicts another one."""


class DataError(GRPOError):
    """A source, scenario or table cannot be used as it is."""


class ArtifactError(GRPOError):
    """A stored artifact is missing, damaged, or not what its digest says."""


class RemovedError(ArtifactError):
    """A checkpoint was removed, because nothing keeps it; it can be made again from its rollouts."""


class StorageError(GRPOError):
    """The store cannot be written or read: disk full, read-only, no permission."""


class PolicyError(GRPOError):
    """A model, tokenizer, chat template or checkpoint does not fit."""


class RewardError(GRPOError):
    """A reward gave a value that cannot be trained on."""


class Unscored(RewardError):
    """This one episode could not be judged: it gets no reward, and none is invented for it."""


class BudgetError(GRPOError):
    """More episodes, records or rewards failed than the error budget allows."""


class RatioError(GRPOError):
    """The learner does not reproduce the sampler's log-probabilities, so the importance ratio is not 1 at the start."""


class NoLearningSignal(GRPOError):
    """No group of the rollout has two different rewards: there is nothing to learn from."""


class Diverged(GRPOError):
    """A gradient or a loss is no number any more: going on would ruin the policy."""


class NoEffect(GRPOError):
    """Training ended with the weights that it started from."""


class RegistryError(GRPOError):
    """The model registry refuses what was asked of it."""


class AddressError(RegistryError):
    """There is no such model or version, none that a run has registered, or what was written is no address."""


class NothingToRollBack(RegistryError):
    """No version has served before the one in service, or none of them is there any more."""


class PromotionRefused(RegistryError):
    """A version may not serve: it did not pass its gates, or was judged against another champion."""


class ReproductionError(GRPOError):
    """What a registered version was made from is not there any more."""


class CapacityError(GRPOError):
    """The machine has not enough memory for what is asked of it."""
