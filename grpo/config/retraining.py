"""Settings of `grpo retrain`: when it trains, on which conversations, and from which run.

triggers        one class per kind of trigger, checked by `grpo.retraining.triggers`
curation        which conversations may be trained on, applied by `grpo.retraining.curation`
mixture         shares of conversations and base scenarios in both splits, see `grpo.retraining.mixture`
corrections     training on corrected replies before GRPO, by SFT or DPO
pipeline        the config of `grpo train` that a retraining runs with the new data
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from grpo.config.base import ByContent, LocalPath, LocalPlace, RunName, Settings
from grpo.config.dpo import PreferenceSettings
from grpo.config.environments import VerifiersSettings
from grpo.config.pipeline import PipelineConfig, load_config
from grpo.config.python_object import import_folder
from grpo.config.scenarios import PythonSource, ServedSource, Source, VerifiersSource
from grpo.config.served_log import AllowedUse
from grpo.config.sft import FineTuningSettings
from grpo.errors import ConfigError

Level = Annotated[float, Field(gt=0, lt=0.5)]


class NewConversationsSettings(Settings):
    """Enough new conversations since the champion was trained and last compared with a candidate."""

    kind: Literal["new_conversations"]
    """Trigger."""
    min_conversations: int = Field(default=200, ge=1)
    """The trigger fires if at least this many new conversations pass every filter."""


class TopicDriftSettings(Settings):
    """Drift of topics against the champion's data: a kernel two-sample test."""

    kind: Literal["topic_drift"]
    """Trigger."""
    significance_level: Level = 0.01
    """False alarm rate without drift."""
    min_conversations: int = Field(default=50, ge=10)
    """Conversations that the test needs in each sample."""
    max_samples: int = Field(default=400, ge=50)
    """Most conversations in each sample."""


class LiveRewardSettings(Settings):
    """The champion's reward in service drops."""

    kind: Literal["live_reward"]
    """Trigger."""
    metric: Literal["reward", "rating"] = "reward"
    """Verified outcome of a conversation (0 or 1), or the user's rating."""
    drop: float = Field(default=0.05, gt=0)
    """Drop of the mean from the older to the newer half of its conversations."""
    significance_level: Level = 0.01
    """Significance level of the drop, one-sided Welch test."""
    min_conversations: int = Field(default=100, ge=10)
    """Conversations with the metric that the test needs."""


class HeldoutRewardSettings(Settings):
    """The champion, reevaluated with today's pipeline, is worse than when it was registered.

    It fires until a candidate was compared with the champion. It rolls out the held-out scenarios again after each
    change of code, environment or reward, which takes a model in memory and minutes. The other triggers take seconds.
    """

    kind: Literal["heldout_reward"]
    """Trigger."""
    drop: float = Field(default=0.03, gt=0)
    """The trigger fires if the upper bound of the new mean is at least this far below the registered mean."""


class AgeSettings(Settings):
    """The champion was registered, and last compared with a candidate, long ago."""

    kind: Literal["age"]
    """Trigger."""
    days: float = Field(default=30.0, gt=0)
    """Days since the last challenger was evaluated or, if there is none, since the champion was trained."""


TriggerSettings = Annotated[
    NewConversationsSettings | TopicDriftSettings | LiveRewardSettings | HeldoutRewardSettings | AgeSettings,
    Field(discriminator="kind"),
]


class CurationSettings(AllowedUse):
    """Filters of the conversations that are trained on."""

    required_fields: tuple[Literal["user_responses", "goal", "tools", "world", "expected"], ...] = ()
    """Fields that must not be empty, because the environment or its rewards need them."""
    near_duplicate_threshold: float = Field(default=0.8, ge=0.6, le=1)
    """Two conversations are duplicates if the Jaccard similarity of their character 5-grams is at least this."""
    max_unreadable_fraction: float = Field(default=0.05, ge=0, le=1)
    """Fraction of unreadable records above which the run stops."""


class MixtureSettings(Settings):
    """Mixture of conversations and base scenarios."""

    conversation_fraction: float = Field(default=0.5, gt=0, lt=1)
    """Largest fraction of conversations in the training split. The scarcer of the two kinds is used whole."""
    heldout_fraction: float = Field(default=0.5, gt=0, lt=1)
    """Largest fraction of conversations in the held-out split."""
    key_fraction: float = Field(default=0.25, gt=0, le=1)
    """Largest fraction of either split, base scenarios included, for the conversations of one API key. All
    conversations without a key count as one key."""
    user_fraction: float = Field(default=0.05, gt=0, le=1)
    """Largest fraction of either split for the conversations of one user under all keys, but at least one conversation.
    If a conversation has no user's name, only `key_fraction` limits it."""


class CorrectionLimits(Settings):
    """Least and largest number of corrections that the champion is trained on before the first rollout."""

    min_corrections: int = Field(default=16, ge=1)
    """If the conversations that are trained on have fewer corrections, the champion is not trained on corrections."""
    max_corrections: int = Field(default=10_000, ge=1)
    """Most corrections that are used. If there are more, the newest are used."""

    @model_validator(mode="after")
    def _some_can_be_used(self) -> Self:
        if self.max_corrections < self.min_corrections:
            raise ValueError(
                f"max_corrections {self.max_corrections} is below min_corrections {self.min_corrections}, so "
                "corrections would never be trained on. Raise max_corrections"
            )
        return self


class SFTCorrections(CorrectionLimits, FineTuningSettings):
    """Supervised fine-tuning of the champion on corrections of its replies."""

    method: Literal["sft"]
    """Supervised fine-tuning on the corrections."""


class DPOCorrections(CorrectionLimits, PreferenceSettings):
    """Direct preference optimization of the champion: each correction is preferred to the reply that was served."""

    method: Literal["dpo"]
    """Preference pairs of correction and reply."""


CorrectionSettings = Annotated[SFTCorrections | DPOCorrections, Field(discriminator="method")]


class RetrainConfig(Settings):
    """Retraining of the champion on conversations from service."""

    name: RunName
    """Name of the run and of its report's folder."""
    pipeline: Annotated[LocalPath, ByContent(is_input=False)]  # the settings in it are the input
    """YAML config of the run that is repeated, starting from the champion."""
    overrides: tuple[str, ...] = ()
    """Overrides of that config, each `section.key=value`."""
    conversations: tuple[Source, ...] = Field(min_length=1)
    """Sources of new conversations."""
    curation: CurationSettings
    """Filters of the conversations."""
    triggers: tuple[TriggerSettings, ...] = Field(
        default=(
            NewConversationsSettings(kind="new_conversations"),
            TopicDriftSettings(kind="topic_drift"),
            LiveRewardSettings(kind="live_reward"),
            AgeSettings(kind="age"),
        ),
        min_length=1,
    )
    """Triggers. It is enough if one fires."""
    mixture: MixtureSettings = MixtureSettings()
    """Mixture of the training split."""
    corrections: CorrectionSettings | None = None
    """Training on corrections in serving logs. None learns only from rewards."""
    import_from: Annotated[LocalPlace | None, ByContent()] = None
    """Folder of the modules of your own sources, as in `import_from` of a pipeline."""

    def load_pipeline(self) -> PipelineConfig:
        """Read the config of the run that is repeated.

        Raises what `load_config` raises, and `ConfigError` if the environment cannot play logged conversations, or if
        the weights are quantized and corrections would be trained on.
        """
        config = load_config(self.pipeline, self.overrides, overrides_in_config=True)
        if isinstance(config.environment, VerifiersSettings):
            raise ConfigError(
                f"{self.pipeline}: environment verifiers {config.environment.id} plays only the tasks of its taskset, "
                "so it cannot play logged conversations. Train again with grpo train instead, or name a config with "
                "another environment"
            )
        if self.corrections is not None and config.policy.quantization is not None:
            raise ConfigError(
                f"{self.pipeline}: policy.quantization {config.policy.quantization}: corrections train all weights. "
                "Leave one of the two out"
            )
        return config

    @model_validator(mode="after")
    def _conversations_are_not_tasks(self) -> Self:
        for source in self.conversations:
            if isinstance(source, VerifiersSource):
                raise ValueError(
                    f"conversations has the source verifiers {source.id}, which holds tasks of an environment and no "
                    "conversations. Name a log, for example kind: served"
                )
        return self

    @model_validator(mode="after")
    def _corrections_are_served(self) -> Self:
        if self.corrections is not None and not any(isinstance(part, ServedSource) for part in self.conversations):
            raise ValueError("corrections are only in serving logs. Add a source of kind served to conversations")
        return self

    @model_validator(mode="after")
    def _own_modules_can_be_imported(self, info: ValidationInfo) -> Self:
        objects = [source.object for source in self.conversations if isinstance(source, PythonSource)]
        folder = import_folder(self.import_from, objects, info)
        return self if folder == self.import_from else self.model_copy(update={"import_from": folder})
