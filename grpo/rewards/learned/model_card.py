"""Model card of a learned reward: its training data, its held-out metric, and the digests of its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from grpo.errors import RewardError
from grpo.rewards.learned.calibration import SureRegion
from grpo.rewards.learned.metrics import HeldOutMetric

CARD, WEIGHTS = "card.json", "network.safetensors"


class DataSource(BaseModel):
    """A data set that a reward was trained on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    licence: str
    sha256: dict[str, str]
    """Digest of each file."""


class ModelCard(BaseModel):
    """Origin of a learned reward, and its quality on held-out data."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learned: Literal["labels", "pairs", "rewards"]
    """Supervision: labelled replies, preference pairs, or rewards observed online."""
    sources: tuple[DataSource, ...] = ()
    split: str
    """Description of the held-out part."""
    trained: int
    """Number of replies, or pairs, in training."""
    heldout: HeldOutMetric | None = None
    """None during online training."""
    seed: int
    weights_sha256: str = ""
    head_sha256: str = ""
    """Digest of the head on sentence vectors, if the reward has one."""
    encoder_sha256: str = ""
    """Digest of the encoder that the head was trained on."""
    sure: SureRegion | None = None
    """Scores at which a safety reward judges a reply. If None, it judges no reply."""

    def require_above_chance(self, place: str) -> ModelCard:
        """The card itself. Raises `RewardError` if the reward was not measured, or is not better than chance."""
        if self.heldout is None:
            raise RewardError(f"the reward in {place} was never measured on held-out data. Measure it first")
        if not self.heldout.beats_chance:
            raise RewardError(
                f"the reward in {place} may be guessing, because its held-out {self.heldout.name} "
                f"{self.heldout.value:.3f}, 95 % interval {self.heldout.low:.3f} to {self.heldout.high:.3f} is not "
                "above 0.5. Train it on more data"
            )
        return self

    def write(self, folder: Path) -> None:
        """Write the card to its file in `folder`."""
        (folder / CARD).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
