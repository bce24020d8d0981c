"""Permanent errors by cause. A `GRPOError` is never retried. Its message gives the value, the place and the remedy.

Transient errors keep the standard library's types (`ConnectionError`, `TimeoutError`, …).
"""

DISTRIBUTION = "grpo-agent-framework"
"""Name under which this package is installed, because `grpo` is another project on the package index."""


def install_command(extra: str) -> str:
    """Shell command that adds an extra to the installed package: `pip install 'grpo-agent-framework[s3]'`."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def printable(text: str) -> str:
    r"""The text with control characters and undecodable bytes as escapes: `\x1b[2J` instead of an empty screen.

    Line breaks and tabs stay. Otherwise texts of users, models and user code could control terminals and logs.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


class GRPOError(Exception):
    """Permanent error: retrying will not help. Its message is made `printable`, because it may quote anything."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(argument) if isinstance(argument, str) else argument for argument in args))


class ConfigError(GRPOError):
    """A setting is unknown, of the wrong type, or contradicts another one."""


class DataError(GRPOError):
    """A source, scenario or table is invalid."""


class OutcomeError(DataError):
    """The outcome that an environment gave an episode is invalid."""


class ArtifactError(GRPOError):
    """A stored artifact is missing, damaged, or differs from its digest."""


class RemovedError(ArtifactError):
    """A checkpoint was removed because nothing references it. It can be recomputed from its rollouts."""


class ErasedError(ArtifactError):
    """An artifact was erased, because it held a conversation and the user asked to erase it."""


class StorageError(GRPOError):
    """The store cannot be written or read: disk full, read-only, no permission."""


class PolicyError(GRPOError):
    """A model, tokenizer, chat template or checkpoint is unusable."""


class RewardError(GRPOError):
    """A reward returned an invalid value."""


class Unscored(RewardError):
    """This episode could not be scored, so that its reward is None."""


class NotApplicable(Unscored):
    """A reward component does not apply to this episode, so that only the other components count."""


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


class SignatureError(RegistryError):
    """A version or promotion in the registry is not signed, was changed, or was signed with another key."""


class NothingToRollBack(RegistryError):
    """No version before the champion exists."""


class PromotionRefused(RegistryError):
    """A version failed its gates, or was evaluated against another champion."""


class ReproductionError(GRPOError):
    """A source or base model of a registered version is missing or changed."""


class CapacityError(GRPOError):
    """The machine does not have enough memory."""
