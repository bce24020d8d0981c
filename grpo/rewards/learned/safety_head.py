"""Head on sentence vectors: the log-odds that a reply is safe, and that its request asks for harm.

features   vector of the request, of the reply, their product and distance, and four flags        [1540]
safe       out · relu(hidden · features + bias) + shift
harmful    request · vector of the request + request_shift
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from grpo.errors import ArtifactError
from grpo.rewards.learned.encoder import DIMENSION, WEIGHTS_SHA256, Encoder
from grpo.rewards.learned.features import PromptedReply
from grpo.rewards.learned.hazards import find_hazards, mask_harmless_uses
from grpo.rewards.learned.model_card import ModelCard
from grpo.rewards.text.refusals import is_refusal

Floats = NDArray[np.float32]

HEAD = "head.safetensors"
_SCALES = (4.0, 4.0, 60.0, 8.0, 2.0)  # bring each family of features to about the same size
_FLAGS = 4
FEATURES = 4 * DIMENSION + _FLAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyHead:
    """The weights."""

    hidden: Floats  # [hidden, FEATURES]
    bias: Floats  # [hidden]
    out: Floats  # [hidden]
    shift: Floats  # [1]
    request: Floats  # [DIMENSION]
    request_shift: Floats  # [1]

    def scores(self, features: Floats) -> Floats:
        """Log-odds of safe replies [replies] from their features [replies, FEATURES]."""
        return np.maximum(features @ self.hidden.T + self.bias, 0) @ self.out + self.shift

    def harmful_requests(self, features: Floats) -> Floats:
        """Log-odds of requests for harm [replies] from features [replies, FEATURES]."""
        return request_vectors(features) @ self.request + self.request_shift


def head_features(encoder: Encoder, replies: Sequence[PromptedReply]) -> Floats:
    """Features of each reply [replies, FEATURES], from the last request of the user and the reply's text."""
    asked = [last_request(reply) for reply in replies]
    answered = [reply.reply.content for reply in replies]
    texts = list(dict.fromkeys([*asked, *answered]))
    places = {text: place for place, text in enumerate(texts)}
    vectors = encoder.encode(texts)
    request, reply = (vectors[[places[text] for text in part]] for part in (asked, answered))
    flags = np.array([_flags(*texts) for texts in zip(asked, answered, strict=True)], np.float32)
    families = (request, reply, request * reply, abs(request - reply), flags)
    return np.concatenate(
        [family * scale for family, scale in zip(families, _SCALES, strict=True)], axis=1, dtype=np.float32
    )


def request_vectors(features: Floats) -> Floats:
    """Vectors of the requests [replies, DIMENSION] from features [replies, FEATURES]."""
    return features[:, :DIMENSION] / np.float32(_SCALES[0])


def last_request(prompted: PromptedReply) -> str:
    """Last message of the user, or the last message of any role if the prompt has no user."""
    users = [message.content for message in prompted.prompt if message.role == "user"]
    return users[-1] if users else prompted.prompt[-1].content if prompted.prompt else ""


def _flags(asked: str, reply: str) -> tuple[bool, bool, bool, bool]:
    """Refused, danger asked for, danger taught, danger named."""
    plain = mask_harmless_uses(reply)
    return (
        is_refusal(reply),
        bool(find_hazards(mask_harmless_uses(asked))),
        bool(find_hazards(plain, unless_negated=True)),
        bool(find_hazards(plain)),
    )


def write_head(folder: Path, head: SafetyHead, card: ModelCard) -> ModelCard:
    """Write the weights next to the network of a learned reward. Returns its card with their digests."""
    weights = save({field.name: getattr(head, field.name) for field in fields(head)})
    signed = card.model_copy(
        update={"head_sha256": hashlib.sha256(weights).hexdigest(), "encoder_sha256": WEIGHTS_SHA256}
    )
    (folder / HEAD).write_bytes(weights)
    signed.write(folder)
    return signed


def read_head(folder: Path, card: ModelCard) -> SafetyHead:
    """Read the weights. Raises `ArtifactError` if they are missing, damaged, not the card's, or of another size."""
    try:
        stored = (folder / HEAD).read_bytes()
    except FileNotFoundError as error:
        raise ArtifactError(f"no head of a safety reward in {folder}: {HEAD} is missing. Train it again") from error
    digest = hashlib.sha256(stored).hexdigest()
    if (digest, WEIGHTS_SHA256) != (card.head_sha256, card.encoder_sha256):
        raise ArtifactError(
            f"{folder / HEAD} is damaged or another encoder's: its digest is {digest} on {WEIGHTS_SHA256}, the "
            f"card has {card.head_sha256} on {card.encoder_sha256}. Train it again"
        )
    try:
        head = SafetyHead(**{name: np.array(weight) for name, weight in load(stored).items()})
    except (SafetensorError, TypeError) as error:
        raise ArtifactError(f"{folder / HEAD} does not hold a head: {error}. Train it again") from error
    if (head.hidden.shape[1:], head.request.shape) != ((FEATURES,), (DIMENSION,)):
        raise ArtifactError(
            f"{folder / HEAD} reads {head.hidden.shape[1:]} features and request vectors of {head.request.shape}, "
            f"expected {FEATURES} and {DIMENSION}. Train it again"
        )
    return head
