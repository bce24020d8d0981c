from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grpo.evaluation.episode_pairs import select_pairs
from grpo.messages import Message, ToolCall
from grpo.trajectories import Outcome, Trajectory, Turn
from tests.doubles import make_trajectory


def _word(ids: Sequence[int]) -> str:
    return f"t{ids[0]}"


def _side(results: str, *, category: str = "a", prefix: str = "") -> list[Trajectory]:
    """'10?' → scenarios 0, 1, 2 with success, failure and nothing verified."""
    return [
        make_trajectory(
            scenario_id=f"{prefix}{index}",
            category=category,
            outcome=None if result == "?" else Outcome(success=result == "1"),
        )
        for index, result in enumerate(results)
    ]


def _shown(champion: list[Trajectory], candidate: list[Trajectory], count: int) -> list[str]:
    return [pair.scenario_id for pair in select_pairs(champion, candidate, _word, count=count)]


def test_pairs_are_one_gain_per_category_then_one_regression_then_the_rest():
    """a gains at a2, b at b1; a0 is lost, and a3 too, of which one is shown before the rest."""
    champion = [*_side("1001", prefix="a"), *_side("00", prefix="b", category="b")]
    candidate = [*_side("0010", prefix="a"), *_side("01", prefix="b", category="b")]
    assert _shown(champion, candidate, 6) == ["a2", "b1", "a0", "a1", "a3", "b0"]


def test_at_most_count_pairs_are_selected():
    """Of the categories, too."""
    champion = [*_side("00", prefix="a"), *_side("00", prefix="b", category="b")]
    assert [_shown(champion, champion, count) for count in (1, 2, 3)] == [["a0"], ["a0", "b0"], ["a0", "b0", "a1"]]


def test_unverified_episodes_are_compared_by_reward():
    """Scenario 1 gains .5, scenario 0 nothing; a missing reward counts as 0."""
    before = [make_trajectory(scenario_id=str(k), terminal_reward=reward) for k, reward in enumerate((0.25, None))]
    after = [make_trajectory(scenario_id=str(k), terminal_reward=reward) for k, reward in enumerate((0.25, 0.5))]
    assert _shown(before, after, 1) == ["1"]


def test_an_episode_without_counterpart_is_left_out():
    """The candidate did not play scenario 1."""
    assert _shown(_side("00"), _side("0"), 6) == ["0"]


def test_a_report_episode_has_all_turns_and_rewards():
    """Tokens of the policy one by one, those of others not; the call as text."""
    call = ToolCall(name="look_up", arguments={"order": "7"})
    turns = (
        Turn(message=Message(role="user", content="Hello?"), start=0, stop=2),
        Turn(message=Message(role="assistant", content="Yes.", tool_calls=(call,)), start=2, stop=4),
        Turn(message=Message(role="user", content=""), start=4, stop=4),
    )
    mask = np.array([False, False, True, True])
    before = make_trajectory(
        turns=turns,
        token_ids=np.array([5, 6, 7, 8], dtype=np.int32),
        loss_mask=mask,
        sampler_logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
        outcome=Outcome(success=True, checks={"closed": True}),
        terminal_reward=0.75,
        breakdown={"checks": 1.0},
        difficulty="hard",
        sample=2,
    )
    after = make_trajectory(sample=2, stop="truncated", policy_hash="q")
    (pair,) = select_pairs([before], [after], _word)
    assert (pair.scenario_id, pair.sample, pair.category, pair.difficulty) == ("s", 2, "c", "hard")
    shown = pair.champion
    assert [(turn.role, turn.content, turn.pieces) for turn in shown.turns] == [
        ("user", "Hello?", ()),
        ("assistant", "Yes.", ("t7", "t8")),
        ("user", "", ()),
    ]
    assert [turn.tool_calls for turn in shown.turns] == [(), (str(call),), ()]
    assert (shown.policy, shown.stop, shown.success, shown.reward) == ("p", "terminated", True, 0.75)
    assert (shown.checks, shown.breakdown) == ({"closed": True}, {"checks": 1.0})
    unverified = pair.candidate
    assert (unverified.policy, unverified.stop, unverified.success) == ("q", "truncated", None)
    assert (unverified.checks, unverified.reward) == ({}, None)


def test_a_smaller_gain_is_not_a_loss():
    """Scenario 2 gains most; without losses the others follow in order of scenarios."""
    before = [make_trajectory(scenario_id=str(k), terminal_reward=0.0) for k in range(4)]
    after = [
        make_trajectory(scenario_id=str(k), terminal_reward=reward) for k, reward in enumerate((0.5, 0.0, 0.9, 0.2))
    ]
    assert _shown(before, after, 4) == ["2", "0", "1", "3"]


def test_tokens_of_the_candidate_are_decoded_too():
    """One token of each side: its own text."""
    turn = (Turn(message=Message(role="assistant", content="x"), start=0, stop=1),)
    sides = [make_trajectory(turns=turn, token_ids=np.array([token], dtype=np.int32)) for token in (7, 8)]
    (pair,) = select_pairs(sides[:1], sides[1:], _word)
    assert [shown.turns[0].pieces for shown in (pair.champion, pair.candidate)] == [("t7",), ("t8",)]
