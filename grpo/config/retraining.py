"""When to train again and on what: what the run form of `retrain` shows and its YAML file sets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grpo.config.base import RunName, Settings
from grpo.config.scenarios import Source

Level = Annotated[float, Field(gt=0, lt=0.5)]


class NewConversationsSettings(Settings):
    """Enough conversations since the champion was trained and last judged against."""

    kind: Literal["new_conversations"]
    """Chooses this reason."""
    min_conversations: int = Field(default=200, ge=1)
    """New ones that pass every gate."""


class TopicDriftSettings(Settings):
    """Users say other things than in the champion's data: a kernel two-sample test."""

    kind: Literal["topic_drift"]
    """Chooses this reason."""
    significance_level: Level = 0.01
    """Share of false alarms where nothing has changed."""
    min_conversations: int = Field(default=50, ge=10)
    """Conversations on each side below which nothing is said."""
    max_samples: int = Field(default=400, ge=50)
    """Most conversations of each side that are compared."""


class LiveRewardSettings(Settings):
    """Users fare worse with the champion than they did before."""

    kind: Literal["live_reward"]
    """Chooses this reason."""
    metric: Literal["reward", "rating"] = "reward"
    """Which column of the conversation log."""
    drop: float = Field(default=0.05, gt=0)
    """The mean of the newer half of its conversations is lower by at least this."""
    significance_level: Level = 0.01
    """And that much by chance no more often than this: one-sided Welch test."""
    min_conversations: int = Field(default=100, ge=10)
    """Conversations with the measure below which nothing is said."""


class HeldoutRewardSettings(Settings):
    """The champion, judged again as the pipeline judges today, is worse than when it was registered.

    One retraining answers it: once a version was judged against the champion it no longer holds.
    It plays its held-out scenarios, once for each change of code, environment or reward: that takes a model in memory
    and minutes, where the other reasons take seconds.
    """

    kind: Literal["heldout_reward"]
    """Chooses this reason."""
    drop: float = Field(default=0.03, gt=0)
    """The upper bound of the new mean is below the registered mean by at least this."""


class AgeSettings(Settings):
    """The champion was registered, and last judged against, long ago."""

    kind: Literal["age"]
    """Chooses this reason."""
    days: float = Field(default=30.0, gt=0)
    """As many days ago."""


TriggerSettings = Annotated[
    NewConversationsSettings | TopicDriftSettings | LiveRewardSettings | HeldoutRewardSettings | AgeSettings,
    Field(discriminator="kind"),
]


class CurationSettings(Settings):
    """What a conversation must be before it is trained on."""

    licences: tuple[str, ...] = Field(min_length=1)
    """Licences that are allowed, as `metadata.licence` names them."""
    consents: tuple[str, ...] = Field(default=("training",), min_length=1)
    """What users must have agreed to, as `metadata.consent` names it; no consent is never enough."""
    required_fields: tuple[Literal["user_responses", "goal", "tools", "world", "expected"], ...] = ()
    """Parts that must not be empty: what the environment and its rewards cannot do without."""
    near_duplicate_threshold: float = Field(default=0.8, ge=0.6, le=1)
    """Similarity (Jaccard, of runs of five characters) from which two conversations say the same."""
    max_unreadable_fraction: float = Field(default=0.05, ge=0, le=1)
    """More records that are no scenario than this share stop the run."""


class MixtureSettings(Settings):
    """What is trained on: conversations and base scenarios together."""

    conversation_fraction: float = Field(default=0.5, gt=0, lt=1)
    """Share of conversations on the training side; the scarcer of the two kinds is used whole."""


class RetrainConfig(Settings):
    """When to train again, on which conversations, and by which pipeline."""

    name: RunName
    """Name of the run and of its report's folder."""
    pipeline: str
    """YAML config of the run that is repeated from the champion on."""
    overrides: tuple[str, ...] = ()
    """What differs from it, each `section.key=value`."""
    conversations: tuple[Source, ...] = Field(min_length=1)
    """Where new conversations come from."""
    curation: CurationSettings
    """Which conversations may be trained on."""
    triggers: tuple[TriggerSettings, ...] = Field(
        default=(
            NewConversationsSettings(kind="new_conversations"),
            TopicDriftSettings(kind="topic_drift"),
            LiveRewardSettings(kind="live_reward"),
            AgeSettings(kind="age"),
        ),
        min_length=1,
    )
    """Each is checked; one that holds is enough."""
    mixture: MixtureSettings = MixtureSettings()
    """In which shares conversations and base scenarios are trained on."""
