"""A learned reward in a folder: its weights, and a card that says what it learned from and how good it is."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from grpo.errors import ArtifactError, RewardError
from grpo.rewards.learned.metrics import HeldOutMetric
from grpo.rewards.learned.network import Network

CARD, WEIGHTS = "card.json", "network.safetensors"


class DataSource(BaseModel):
    """A data set that a reward learned from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    licence: str
    sha256: dict[str, str]
    """Digest of each file that was read."""


class ModelCard(BaseModel):
    """Where a learned reward comes from, and how well it does on what it did not see."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learned: Literal["labels", "pairs", "rewards"]
    """What it was taught by: good and bad replies, better and worse ones, or rewards that were given."""
    sources: tuple[DataSource, ...] = ()
    split: str
    """What was held out."""
    trained: int
    """Replies, or pairs, that it learned from."""
    heldout: HeldOutMetric | None = None
    """None while it is being taught online."""
    seed: int
    weights_sha256: str = ""
    head_sha256: str = ""
    """Of the head on sentence vectors, where the reward has one."""
    encoder_sha256: str = ""
    """Of the weights of the encoder that the head was taught on."""

    def require_above_chance(self, place: str) -> ModelCard:
        """Itself. Raises `RewardError` for a reward that was never measured, or that may be guessing."""
        if self.heldout is None:
            raise RewardError(f"the reward in {place} was never measured on held-out data; measure it first")
        if not self.heldout.beats_chance:
            raise RewardError(
                f"the reward in {place} may be guessing: held-out {self.heldout.name} {self.heldout.value:.3f}, 95 % "
                f"interval {self.heldout.low:.3f} to {self.heldout.high:.3f} holds 0.5; teach it with more data"
            )
        return self


def write_network(folder: Path, network: Network, card: ModelCard) -> ModelCard:
    """Write weights and card; returns the card with the digest of the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = save(network.weights)
    signed = card.model_copy(update={"weights_sha256": hashlib.sha256(weights).hexdigest()})
    (folder / WEIGHTS).write_bytes(weights)
    (folder / CARD).write_text(signed.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return signed


def read_network(folder: Path) -> tuple[Network, ModelCard]:
    """Read weights and card. Raises `ArtifactError` where one is missing, damaged, or not the other's."""
    try:
        card = ModelCard.model_validate_json((folder / CARD).read_bytes())
        stored = (folder / WEIGHTS).read_bytes()
    except FileNotFoundError as error:
        raise ArtifactError(f"no learned reward in {folder}: {Path(error.filename).name} is missing") from error
    except ValidationError as error:
        raise ArtifactError(f"{folder / CARD} is no card of a learned reward: {error}") from error
    found = hashlib.sha256(stored).hexdigest()
    if found != card.weights_sha256:
        raise ArtifactError(f"{folder / WEIGHTS} is damaged: the card says {card.weights_sha256}, found {found}")
    try:
        return Network(**{name: np.array(weight) for name, weight in load(stored).items()}), card
    except (SafetensorError, TypeError) as error:
        raise ArtifactError(f"{folder / WEIGHTS} holds no network: {error}; teach it again") from error


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
