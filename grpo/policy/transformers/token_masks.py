"""Masks of the tokens that grammars allow next, computed beside the forward pass.

    pass      forward ───────────────► logits ─► −∞ outside of the mask ─► sample ─► matcher reads the token
    thread    masks of this pass ──────────────┘

The masks of a pass follow from the tokens before it, so that a thread computes them, without the interpreter's lock,
while the model runs. Turns without a grammar are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import llguidance.numpy as llguidance_masks
import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher
from numpy.typing import NDArray

from grpo.policy.grammars import Grammars


class TokenMasks:
    """Masks of the turns of one sampler, whose matchers are those of `grammars`."""

    def __init__(self, grammars: Grammars) -> None:
        self.grammars = grammars
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._executor = LLExecutor(1)
        self._masks: dict[LLMatcher, NDArray[np.int32]] = {}
        """Masks from the beginning of a pass until a token of it is sampled."""
        self._job: Future[None] | None = None

    def begin(self, matchers: Sequence[LLMatcher]) -> None:
        """Begin to compute the masks that the next pass may need; those of earlier passes are kept."""
        self._wait()
        self._masks = {matcher: self._masks[matcher] for matcher in matchers if matcher in self._masks}
        missing = [matcher for matcher in matchers if matcher not in self._masks]
        if missing:
            self._job = self._thread.submit(self._fill, missing)

    def apply(self, scores: torch.Tensor, matchers: Sequence[LLMatcher | None]) -> None:
        """Set the scores [turns, vocabulary] of tokens outside of the masks to −∞, in place.

        A row whose grammar has failed has no token left; its matcher is in an error state.
        """
        self._wait()
        rows = [row for row, matcher in enumerate(matchers) if matcher is not None]
        if not rows:
            return
        packed = np.stack([self._masks[matcher] for matcher in matchers if matcher is not None])
        bits = np.unpackbits(packed.view(np.uint8), axis=1, bitorder="little")
        excluded = torch.ones(len(rows), scores.shape[1], dtype=torch.bool)
        width = min(scores.shape[1], bits.shape[1])
        excluded[:, :width] = torch.from_numpy(bits[:, :width]) == 0
        excluded = excluded.to(scores.device)
        if len(rows) == len(scores):
            scores.masked_fill_(excluded, -torch.inf)
        else:
            index = torch.tensor(rows, device=scores.device)
            scores[index] = scores[index].masked_fill_(excluded, -torch.inf)

    def read(self, matcher: LLMatcher, token: int) -> None:
        """Move a matcher on by the sampled token."""
        matcher.consume_token(token)
        self._masks.pop(matcher, None)

    def _wait(self) -> None:
        if self._job is not None:
            self._job.result()
            self._job = None

    def _fill(self, matchers: list[LLMatcher]) -> None:
        words = (self.grammars.vocabulary_size + 31) // 32
        masks = np.zeros((len(matchers), words), np.int32)
        pairs = [(matcher, row) for row, matcher in enumerate(matchers)]
        llguidance_masks.fill_next_token_bitmask_par(self._executor, pairs, masks)
        self._masks.update((matcher, masks[row]) for row, matcher in enumerate(matchers))
