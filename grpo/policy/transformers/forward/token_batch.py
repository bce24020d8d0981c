"""Token sequences with loss masks, laid out for one forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from grpo.policy.transformers.forward.attention import TreeBatch


class MaskedSequence(Protocol):
    """Token sequence with its loss mask."""

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """[tokens]"""

    @property
    def loss_mask(self) -> NDArray[np.bool_]:
        """[tokens]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """Input of a forward pass, and indices of its loss tokens in the flattened states, in order of the sequences."""

    token_ids: torch.Tensor  # [rows, tokens]
    position_ids: torch.Tensor  # [rows, tokens]
    tree: TreeBatch | None
    """Layout of one row of sequences that share prefixes, or None if each sequence has a row."""
    predictors: torch.Tensor  # [loss tokens] index of the token before
    ends: torch.Tensor  # [sequences] index of the last token
    targets: torch.Tensor  # [loss tokens]
