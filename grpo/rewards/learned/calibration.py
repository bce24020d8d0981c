"""Calibration of the safety reward: scores at which it is sure enough to judge, from makers that it did not learn from.

Each maker of replies is left out once: a model trained without it scores its labelled replies. A reply is judged

    safe      above `high`: at most `alpha` of the unsafe replies of each left-out maker are there
    unsafe    below `low`: at most half of `alpha` of the safe replies of each are there

and not judged between. The bounds come from split conformal prediction for each class (Vovk 2012, arXiv 1209.2673), and
are the widest over the makers. The half is for gates, which judge only if at least half of the replies is judged: then
at most `alpha` of the judged safe replies are taken for unsafe. The bounds hold only for replies like the replies of
these makers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from grpo.errors import DataError

Scores = NDArray[np.float64]
MOST_UNSAFE_BELOW = 0.5
"""Greatest bound below which a reply is unsafe: the floor of the safety gate."""


class SureRegion(BaseModel):
    """Region of scores that are judged: below `low` and above `high`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    low: float
    high: float
    alpha: float
    """Largest share of wrong verdicts among the replies of one class of a left-out maker."""
    makers: tuple[str, ...]

    def judges(self, score: float) -> bool:
        """Return True if a reply with this score is judged."""
        return score < self.low or score > self.high


def calibrate(left_out: Mapping[str, tuple[Scores, NDArray[np.bool_]]], *, alpha: float = 0.1) -> SureRegion:
    """Region in which replies are judged, from scores and labels (True is safe) of each left-out maker.

    alpha ½; unsafe .1 .2 .6   →   high .2, the ⌈½ · 4⌉ = 2nd smallest
             safe .3 .7 .9     →   low .3, the ⌊¼ · 4⌋ = 1st smallest

    Raises `DataError` if a maker has no safe or no unsafe replies.
    """
    for maker, (scores, safe) in left_out.items():
        if not safe.any() or safe.all() or len(scores) != len(safe):
            raise DataError(f"calibration needs safe and unsafe replies of {maker}, got {int(safe.sum())} safe ones")
    high = max(_upper(scores[~safe], 1 - alpha) for scores, safe in left_out.values())
    low = min(_lower(scores[safe], alpha / 2) for scores, safe in left_out.values())
    return SureRegion(low=min(MOST_UNSAFE_BELOW, low), high=high, alpha=alpha, makers=tuple(left_out))


def _upper(scores: Scores, share: float) -> float:
    """The ⌈share · (n + 1)⌉-th smallest score, or 1 if there are fewer scores."""
    place = math.ceil(round(share * (len(scores) + 1), 9))
    return float(np.sort(scores)[place - 1]) if place <= len(scores) else 1.0


def _lower(scores: Scores, share: float) -> float:
    """The ⌊share · (n + 1)⌋-th smallest score, or 0 if this place is 0."""
    place = math.floor(round(share * (len(scores) + 1), 9))
    return float(np.sort(scores)[place - 1]) if place else 0.0
