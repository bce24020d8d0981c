"""Masks of the tokens that grammars allow next, computed while the forward pass runs.

    pass      forward ───────────────► logits ─► −∞ outside of the mask ─► sample ─► matcher reads the token
    thread    masks of this pass ──────────────┘

The masks of a pass depend only on the tokens before it. So a thread computes them while the model runs, without holding
the interpreter's lock. Turns without a grammar are not changed.
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
    """Masks of the turns of one sampler. Their matchers come from `grammars`."""

    def __init__(self, grammars: Grammars) -> None:
        self.grammars = grammars
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._executor = LLExecutor(1)
        self._excluded: dict[LLMatcher, NDArray[np.bool_]] = {}
        """Per matcher, True for each token that is not allowed. A row is dropped when its turn samples a token."""
        self._latest: tuple[list[LLMatcher], NDArray[np.bool_]] = ([], np.empty((0, 0), np.bool_))
        """Matchers and rows of the last pass. If no turn begins or ends, the next batch uses them as one array."""
        self._job: Future[None] | None = None

    def begin(self, matchers: Sequence[LLMatcher]) -> None:
        """Begin to compute the masks that the next pass may need. Masks that are still valid are kept."""
        self._wait()
        self._excluded = {matcher: self._excluded[matcher] for matcher in matchers if matcher in self._excluded}
        missing = [matcher for matcher in matchers if matcher not in self._excluded]
        if missing:
            self._job = self._thread.submit(self._fill, missing)

    def apply(self, scores: torch.Tensor, matchers: Sequence[LLMatcher | None]) -> None:
        """Set the scores [turns, vocabulary] of tokens outside of the masks to −∞, in place.

        If the grammar of a row has failed, no token is left in the row, and its matcher is in an error state.
        """
        self._wait()
        constrained = [matcher for matcher in matchers if matcher is not None]
        if not constrained:
            return
        excluded = self._rows(constrained, width=scores.shape[1]).to(scores.device)
        if len(constrained) == len(scores):
            scores.masked_fill_(excluded, -torch.inf)
        else:
            rows = [row for row, matcher in enumerate(matchers) if matcher is not None]
            index = torch.tensor(rows, device=scores.device)
            scores[index] = scores[index].masked_fill_(excluded, -torch.inf)

    def _rows(self, matchers: list[LLMatcher], *, width: int) -> torch.Tensor:
        """Excluded tokens of these matchers, [matchers, width]. Tokens beyond the vocabulary are excluded."""
        order, latest = self._latest
        together = latest if order == matchers else np.stack([self._excluded[matcher] for matcher in matchers])
        if together.shape[1] < width:
            beyond = np.ones((len(matchers), width - together.shape[1]), np.bool_)
            together = np.concatenate([together, beyond], axis=1)
        return torch.from_numpy(together[:, :width])

    def read(self, matcher: LLMatcher, token: int) -> None:
        """Advance a matcher by the sampled token."""
        matcher.consume_token(token)
        self._excluded.pop(matcher, None)

    def _wait(self) -> None:
        if self._job is not None:
            self._job.result()
            self._job = None

    def _fill(self, matchers: list[LLMatcher]) -> None:
        words = (self.grammars.vocabulary_size + 31) // 32
        masks = np.zeros((len(matchers), words), np.int32)
        pairs = [(matcher, row) for row, matcher in enumerate(matchers)]
        llguidance_masks.fill_next_token_bitmask_par(self._executor, pairs, masks)
        excluded = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little") == 0
        self._latest = matchers, excluded
        self._excluded.update(zip(matchers, excluded, strict=True))
