"""Masks of the tokens that grammars allow next, computed while the forward pass runs.

    pass      forward ───────────────► logits ─► −∞ outside of the mask ─► sample ─► matcher reads the token
    thread    masks of this pass ──────────────┘

The masks of a pass depend only on the tokens before it. So a thread computes them while the model runs, without holding
the interpreter's lock. Turns without a grammar are not changed.

When a turn has few tokens left, its mask leaves only what completes the reply, see `grpo.policy.reply_ends`. The search
for its end takes up to 20 ms, and the batch waits for it. So all turns together have one budget of time per pass:

    pass          1      2      3      4        3 ms are added per pass, up to 20 ms
    budget       20     15     -2      1        a search may begin while the budget is above 0
    searches    A: 8   B: 20   none   C: 1      the turn that has used the least time is the next one

A turn that gets no time waits for a later pass. If its end is still known, because it has sampled the end's first
token, it goes on with the end, which takes no time. If it gets no time until its limit, the reply is cut off.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import llguidance.numpy as llguidance_masks
import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher
from numpy.typing import NDArray

from grpo.policy.grammars import Grammars
from grpo.policy.reply_ends import NEAR, keep

_CPU_S = 0.5
"""Longest time that is spent on the end of one turn."""
_PASS_S = 0.003
"""Time per pass that is spent on the ends of all turns of the batch, on average."""
_SAVED_S = 0.02
"""Most time that passes without a search leave to later ones."""


@dataclass(slots=True)
class _End:
    """State of the search for the end of a turn."""

    due: int
    """Tokens left to the turn when its end is searched for again. 0 if there is none."""
    cpu_s: float = 0.0
    """Time that was spent on it."""
    tokens: Sequence[int] = ()
    """Tokens that complete the reply. Empty if none are known at its present place."""
    shortens: bool = False
    """True if the reply was shortened, because its limit is near."""


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
        self._ends: dict[LLMatcher, _End] = {}
        """Ends of the turns whose replies are completed."""
        self._budget_s = _SAVED_S
        """Time that the searches may take. Below 0 if the last one took longer."""
        self._job: Future[None] | None = None

    def begin(self, left: Mapping[LLMatcher, int]) -> None:
        """Begin to compute the masks that the next pass may need. Masks that are still valid are kept.

        `left` is the number of tokens that each turn may still sample, or 0 if its reply is not completed.
        """
        self._wait()
        self._excluded = {matcher: self._excluded[matcher] for matcher in left if matcher in self._excluded}
        self._ends = {matcher: self._ends.get(matcher) or _End(due=count) for matcher, count in left.items() if count}
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
        end = self._ends.get(matcher)
        if end is None:
            return False
        end.tokens = end.tokens[1:] if end.tokens and end.tokens[0] == token else ()
        return end.shortens and matcher.is_accepting()

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
        self._complete(left, excluded)
        self._latest = matchers, excluded
        self._excluded.update(zip(matchers, excluded, strict=True))

    def _complete(self, left: Mapping[LLMatcher, int], excluded: NDArray[np.bool_]) -> None:
        """Exclude tokens after which turns could not be completed with the tokens that they have left, in place."""
        self._budget_s = min(_SAVED_S, self._budget_s + _PASS_S)
        due = [
            (self._ends[matcher], count, matcher, excluded[row])
            for row, (matcher, count) in enumerate(left.items())
            if 0 < count <= self._ends[matcher].due
        ]
        for end, count, matcher, tokens in sorted(due, key=lambda turn: (turn[0].cpu_s, turn[1])):
            if self._budget_s > 0:
                self._search(end, count, matcher, tokens)
            elif end.tokens and count - len(end.tokens) <= NEAR:
                end.shortens = keep(tokens, end.tokens[0])

    def _search(self, end: _End, left: int, matcher: LLMatcher, excluded: NDArray[np.bool_]) -> None:
        """Search for the end of a turn, and if its limit is near, exclude tokens after which there would be none."""
        ends = self.grammars.ends  # before the time is taken, because the first call reads the vocabulary
        began = time.thread_time()
        tokens = ends.tokens(matcher, at_most=left)
        spare = -1 if tokens is None else left - len(tokens)
        if tokens and spare <= NEAR:
            cpu_s = self._budget_s + began - time.thread_time()
            end.shortens |= ends.narrow(matcher, excluded, tokens, left=left, cpu_s=cpu_s)
        spent_s = time.thread_time() - began
        self._budget_s -= spent_s
        end.cpu_s += spent_s
        end.tokens = tokens or ()
        # sampled tokens may make the end longer
        end.due = left - max(1, (spare - NEAR) // 2) if tokens is not None and end.cpu_s < _CPU_S else 0
