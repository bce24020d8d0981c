"""Masks of the tokens that grammars allow next, computed while the forward pass runs.

    pass      forward ───────────────► logits ─► −∞ outside of the mask ─► sample ─► matcher reads the token
    thread    masks of this pass ──────────────┘

The masks of a pass depend only on the tokens before it. So a thread computes them while the model runs, without holding
the interpreter's lock. Turns without a grammar are not changed.

When a turn has few tokens left, its mask leaves only what completes the reply, see `grpo.policy.reply_ends`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import llguidance.numpy as llguidance_masks
import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher
from numpy.typing import NDArray

from grpo.policy.grammars import Grammars
from grpo.policy.reply_ends import NEAR

_CPU_S = 0.5
"""Longest time that is spent on the end of a turn, because all turns of the batch wait for it."""


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
        self._due: dict[LLMatcher, int] = {}
        """Tokens left to a turn when its end is searched for again. 0 if there is none."""
        self._cpu_s: dict[LLMatcher, float] = {}
        """Time that was spent on the end of a turn."""
        self._completed: set[LLMatcher] = set()
        """Matchers of turns that were shortened, because their limit is near."""
        self._job: Future[None] | None = None

    def begin(self, left: Mapping[LLMatcher, int]) -> None:
        """Begin to compute the masks that the next pass may need. Masks that are still valid are kept.

        `left` is the number of tokens that each turn may still sample, or 0 if its reply is not completed.
        """
        self._wait()
        self._excluded = {matcher: self._excluded[matcher] for matcher in left if matcher in self._excluded}
        self._due = {matcher: self._due[matcher] for matcher in left if matcher in self._due}
        self._cpu_s = {matcher: self._cpu_s[matcher] for matcher in left if matcher in self._cpu_s}
        self._completed &= left.keys()
        missing = {matcher: count for matcher, count in left.items() if matcher not in self._excluded}
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

    def read(self, matcher: LLMatcher, token: int) -> bool:
        """Advance a matcher by the sampled token. True if a reply is complete that its limit would have cut off."""
        matcher.consume_token(token)
        self._excluded.pop(matcher, None)
        return matcher in self._completed and matcher.is_accepting()

    def _wait(self) -> None:
        if self._job is not None:
            self._job.result()
            self._job = None

    def _fill(self, left: Mapping[LLMatcher, int]) -> None:
        matchers = list(left)
        words = (self.grammars.vocabulary_size + 31) // 32
        masks = np.zeros((len(matchers), words), np.int32)
        pairs = [(matcher, row) for row, matcher in enumerate(matchers)]
        llguidance_masks.fill_next_token_bitmask_par(self._executor, pairs, masks)
        excluded = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little") == 0
        for row, (matcher, count) in enumerate(left.items()):
            self._complete(matcher, count, excluded[row])
        self._latest = matchers, excluded
        self._excluded.update(zip(matchers, excluded, strict=True))

    def _complete(self, matcher: LLMatcher, left: int, excluded: NDArray[np.bool_]) -> None:
        """Exclude tokens after which a turn could not be completed with the tokens that it has left, in place."""
        if not left or left > self._due.get(matcher, left):
            return
        began, ends = time.thread_time(), self.grammars.ends
        end = ends.tokens(matcher, at_most=left)
        spare = -1 if end is None else left - len(end)
        if end and spare <= NEAR and ends.narrow(matcher, excluded, end, left):
            self._completed.add(matcher)
        self._cpu_s[matcher] = self._cpu_s.get(matcher, 0.0) + time.thread_time() - began
        has_end = end is not None and self._cpu_s[matcher] < _CPU_S
        # sampled tokens may make the end longer
        self._due[matcher] = left - max(1, (spare - NEAR) // 2) if has_end else 0
