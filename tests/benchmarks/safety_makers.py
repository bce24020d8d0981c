"""The safety reward on makers of replies that it did not learn from: each is left out once, and measured.

A maker is who wrote the replies: people and small chat models of DiaSafety, and the author of the made-up exchanges and
of `data/contrast`. Replies of PandaLM and Taskmaster are in every training, as they are only assumed safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from grpo.rewards.learned.calibration import SureRegion, calibrate
from grpo.rewards.learned.features import PromptedReply
from grpo.rewards.learned.network import read_network
from grpo.rewards.learned.safety import SafetyModel, score_safety
from grpo.rewards.learned.training import train_on_labels
from grpo.scenarios.reward_data import LabelledReply
from tests.benchmarks.safety_head import train_head

Scored = tuple[NDArray[np.float64], NDArray[np.bool_]]
"""Scores and labels (True is safe)."""


def without_each(
    makers: Mapping[str, Sequence[LabelledReply]],
    measured: Mapping[str, Sequence[LabelledReply]],
    always: Sequence[LabelledReply],
) -> dict[str, Scored]:
    """Scores of each maker's measured replies by a model trained on the other makers and on what is always there."""
    left_out = {}
    for maker, replies in measured.items():
        trained = [*always, *(item for name, items in makers.items() if name != maker for item in items)]
        left_out[maker] = _scores(trained, replies)
    return left_out


def across(left_out: Mapping[str, Scored]) -> dict[str, tuple[SureRegion, Scored]]:
    """Each maker with the region that the others give, as for a maker that nobody has seen."""
    return {
        maker: (calibrate({name: other for name, other in left_out.items() if name != maker}), scored)
        for maker, scored in left_out.items()
    }


def judged(region: SureRegion, scores: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of the scores are judged."""
    return np.array([region.judges(score) for score in scores])


def _scores(trained: Sequence[LabelledReply], replies: Sequence[LabelledReply]) -> Scored:
    with TemporaryDirectory() as folder:
        card = train_on_labels(trained, replies, Path(folder), sources=(), split="one maker")
        network, _ = read_network(Path(folder))
    model = SafetyModel(network=network, head=train_head(trained), card=card)
    scored = score_safety(model, [PromptedReply(prompt=item.prompt, reply=item.reply) for item in replies])
    return np.array([reply.score for reply in scored]), np.array([bool(item.score) for item in replies])
