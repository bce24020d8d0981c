from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo.errors import DataError
from grpo.evaluation.judge_bias import PADDING, length_bias, position_bias
from grpo.messages import Message
from grpo.rewards.judge.ruler import RulerReward
from grpo.rewards.reward import Episode, RewardContext
from tests.model_server import Model, judges

WORTH = {"a": 0.2, "b": 0.4, "c": 0.6}


@pytest.fixture
def model() -> Iterator[Model]:
    model = Model()
    yield model
    model.close()


def _ruler(model: Model, folder: Path, score: Callable[[str, int], float]) -> RulerReward:
    model.answers = [judges(score)]
    return RulerReward(model=f"openai+{model.url}#clerk", folder=str(folder), retries=0)


def _group(scenario: str, replies: str = "abc") -> list[Episode]:
    context = RewardContext(scenario_id=scenario, category="c", stop="terminated")
    return [Episode(turns=(Message(role="assistant", content=text),), context=context) for text in replies]


def test_a_fair_judge_has_no_position_bias(model: Model, tmp_path: Path):
    """Mean .4 at each place, effects 0; three rotations a group are three calls."""
    ruler = _ruler(model, tmp_path, lambda reply, place: WORTH[reply])
    bias = asyncio.run(position_bias(ruler, [_group("s"), _group("t")]))
    assert bias.means == pytest.approx((0.4, 0.4, 0.4))
    assert [(effect.mean, effect.count) for effect in bias.effects] == [(pytest.approx(0, abs=1e-12), 6)] * 3
    assert all(effect.low < 0 < effect.high for effect in bias.effects)
    assert len(model.asked) == 6


def test_a_position_bias_is_measured(model: Model, tmp_path: Path):
    """+.3 at the first of three places: means .7, .4, .4; a conversation's own mean gains .1: effects .2, -.1, -.1."""
    ruler = _ruler(model, tmp_path, lambda reply, place: WORTH[reply] + 0.3 * (place == 0))
    bias = asyncio.run(position_bias(ruler, [_group(str(k)) for k in range(10)]))
    assert bias.means == pytest.approx((0.7, 0.4, 0.4))
    assert [effect.mean for effect in bias.effects] == pytest.approx([0.2, -0.1, -0.1])
    assert bias.effects[0].low > 0 > bias.effects[1].high


def test_the_interval_of_an_effect_is_over_conversations(model: Model, tmp_path: Path):
    """Only "a" gains .6 at the first place: effects there .4, 0, 0, mean .4/3, of 30 conversations.

    With weights of .5 at -1 and +1 among 31: mean .129, variance ((10 · .16 + 1) / 31 - .129²) / 32 = .0458².
    """
    ruler = _ruler(model, tmp_path, lambda reply, place: WORTH[reply] + 0.6 * (place == 0 and reply == "a"))
    first = asyncio.run(position_bias(ruler, [_group(str(k)) for k in range(10)])).effects[0]
    assert first.mean == pytest.approx(0.4 / 3)
    assert (first.low, first.high) == pytest.approx((0.129 - 0.09, 0.129 + 0.09), abs=0.015)


def test_a_group_with_a_missing_rotation_is_left_out(model: Model, tmp_path: Path):
    """Counted instead; and without a group the number is absent."""
    groups = [_group("s"), _group("t", "abx")]
    ruler = _ruler(model, tmp_path, lambda reply, place: WORTH.get(reply, 7))
    bias = asyncio.run(position_bias(ruler, groups))
    assert (bias.unscored_groups, bias.effects[0].count) == (1, 3)
    with pytest.raises(DataError, match="scored none of 1 groups"):
        asyncio.run(position_bias(ruler, groups[1:]))
    with pytest.raises(DataError, match=r"groups of sizes \[2, 3\]"):
        asyncio.run(position_bias(ruler, [_group("s"), _group("t", "ab")]))


def test_a_length_bias_is_measured(model: Model, tmp_path: Path):
    """+.25 for a padded reply; its love of the first place cancels, as both orders are judged."""
    ruler = _ruler(model, tmp_path, lambda reply, place: 0.2 + 0.25 * reply.endswith(PADDING) + 0.5 * (place == 0))
    bias = asyncio.run(length_bias(ruler, _group("s")))
    assert bias.effect.mean == pytest.approx(0.25)
    assert bias.effect.low < 0.25 < bias.effect.high
    assert (bias.effect.count, bias.unscored) == (3, 0)


def test_a_fair_judge_has_no_length_bias(model: Model, tmp_path: Path):
    """By its own first letter; a conversation without a verdict is counted."""
    ruler = _ruler(model, tmp_path, lambda reply, place: WORTH.get(reply[0], 7))
    bias = asyncio.run(length_bias(ruler, _group("s", "abx")))
    assert (bias.effect.mean, bias.effect.count, bias.unscored) == (pytest.approx(0), 2, 1)
    with pytest.raises(DataError, match="scored none of 1 conversations"):
        asyncio.run(length_bias(ruler, _group("s", "x")))
