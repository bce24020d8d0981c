from __future__ import annotations

import numpy as np
import pytest

from grpo.messages import Message, ToolCall
from grpo.rewards.rollout_summary import CallCounts, component_moments, reply_dependence, summarize
from grpo.tables import turns_from_rows, turns_to_rows
from grpo.trajectories import Branch, Outcome, Trajectory, Turn
from tests.doubles import make_trajectory

_USER, _SAYS = Message(role="user", content="?"), Message(role="assistant", content="!")


def _judged(scenario: str, reward: float | None, **changes: object) -> Trajectory:
    """An episode of this scenario; without a reward it failed."""
    failed = {"stop": "failed"} if reward is None else {"breakdown": {"checks": reward}}
    return make_trajectory(**{"scenario_id": scenario, "terminal_reward": reward, **failed, **changes})


def test_what_a_branch_shares_is_counted_once():
    """A branch after the first turn: its second reply counts, and not the call that its root has made."""
    call = Message(role="assistant", content="", tool_calls=(ToolCall(name="f", arguments={}),))
    turns = tuple(Turn(message=message, start=k, stop=k + 1) for k, message in enumerate((_USER, call, _USER, call)))
    root = _judged("s", 1.0, turns=turns)
    assert CallCounts.of([root]).parsed == 2
    assert CallCounts.of([root, _judged("s", 1.0, turns=turns, branch=Branch(sample=0, tokens=2))]).parsed == 3


def test_branches_of_replies_that_ignore_the_scenario_are_no_dependence():
    """Each root and its five branches share a first reply of random tokens. Only what they do not share is compared."""
    rng = np.random.default_rng(0)
    episodes = []
    for scenario in range(8):
        for _ in range(2):
            shared = rng.integers(5, 9, 6)
            for k in range(6):
                tokens = np.concatenate([[1], shared, [2], rng.integers(5, 9, 6)]).astype(np.int32)
                spans = ((_USER, 0, 1), (_SAYS, 1, 7), (_USER, 7, 8), (_SAYS, 8, 14))
                episodes.append(
                    _judged(
                        str(scenario),
                        1.0,
                        turns=tuple(Turn(message=message, start=a, stop=b) for message, a, b in spans),
                        token_ids=tokens,
                        loss_mask=np.array([message is _SAYS for message, a, b in spans for _ in range(a, b)]),
                        sampler_logprobs=np.zeros(14, np.float32),
                        branch=Branch(sample=0, tokens=7) if k else None,
                    )
                )
    information = reply_dependence(episodes)
    assert information is not None
    assert information.is_independent
    assert abs(information.nats) < 0.1


def test_a_group_is_informative_when_two_siblings_differ():
    """Equal rewards, a single one after a failure, and failed groups are not informative; 0 and 1 are."""
    rewards = {"alike": (1.0, 1.0), "alone": (None, 1.0), "failed": (None, None), "apart": (0.0, 1.0)}
    summary = summarize([_judged(name, reward) for name, pair in rewards.items() for reward in pair])
    assert (summary.groups, summary.informative_groups) == (4, 1)


def test_turn_rewards_make_a_group_informative():
    """Equal terminal rewards, and a turn reward for one sample."""
    on_the_way = _judged("s", 1.0, turn_rewards=(0.5,))
    assert summarize([_judged("s", 1.0), on_the_way]).informative_groups == 1


def test_joined_summaries_are_those_of_all_episodes():
    """Each mean by the episodes behind it: failed and unverified ones have no part in some."""
    solved = Outcome(success=True)
    missed = Outcome(success=False)
    first = [_judged("a", 1.0, outcome=solved), _judged("a", 0.0, outcome=missed), _judged("a", None)]
    second = [_judged("b", 1.0), _judged("c", 0.5, stop="truncated", outcome=solved)]
    joined, whole = summarize(first).joined(summarize(second)), summarize([*first, *second])
    assert joined.reward == pytest.approx(2.5 / 4)  # (1 + 0 + 1 + 0.5) / 4, one failed
    assert joined.success == pytest.approx(2 / 3)  # one is not verified, one failed
    assert joined.components == {"checks": pytest.approx(2.5 / 4)}
    assert (joined.truncated_share, joined.failed_share) == (pytest.approx(0.2), pytest.approx(0.2))
    counted = ("groups", "informative_groups", "episodes", "rewarded", "verified")
    assert [getattr(joined, name) for name in counted] == [getattr(whole, name) for name in counted] == [3, 1, 5, 4, 3]


def test_rollouts_that_all_failed_have_no_mean():
    """None is not 0, joined or not."""
    nothing = summarize([_judged("a", None)])
    assert nothing.joined(nothing).reward is None
    assert nothing.joined(summarize([_judged("b", 1.0)])).reward == 1.0


def test_episodes_whose_success_is_not_judged_are_counted_and_in_no_mean():
    """One success of one verified episode; two that wait for assertions are neither success nor failure."""
    waiting = Outcome.of({"end_state": True}, unjudged=("NL_ASSERTION",))
    solved = summarize([_judged("a", 1.0, outcome=Outcome(success=True)), _judged("a", 1.0, outcome=waiting)])
    summary = solved.joined(summarize([_judged("b", 1.0, outcome=waiting)]))
    assert (summary.verified, summary.unjudged, summary.success) == (1, 2, 1.0)


def test_the_summary_leaves_failed_episodes_out_of_its_means():
    """Rewards 1 and None: mean 1, failed share ½."""
    summary = summarize([_judged("a", 1.0, outcome=Outcome(success=True)), _judged("a", None)])
    assert (summary.reward, summary.success, summary.failed_share) == (1.0, 1.0, 0.5)


def _scored(**breakdown: float) -> Trajectory:
    return make_trajectory(breakdown=breakdown, terminal_reward=0.0)


ROLLOUT = [
    _scored(a=0.0, b=0.1, c=1.0, d=0.5),
    _scored(a=1.0, b=0.9, c=0.0, d=0.5),
    _scored(a=0.5, b=0.5, c=1.0, d=0.5),
]


def test_components_have_mean_spread_and_count():
    """a: 0, 1, .5 → mean .5, variance (.25 + .25 + 0) / 3"""
    a = component_moments(ROLLOUT).statistics()["a"]
    assert (a.mean, a.std, a.count) == (pytest.approx(0.5), pytest.approx((0.5 / 3) ** 0.5), 3)


def test_highly_correlated_components_are_named():
    """a and b lie on a line; c goes another way; d never changes and has no correlation."""
    moments = component_moments(ROLLOUT)
    assert moments.highly_correlated() == {("a", "b"): pytest.approx(1.0)}
    assert moments.correlations()[("a", "c")] == pytest.approx(-0.8660254)  # −1/6 / √(1/6 · 2/9)
    assert set(moments.correlations()) == {("a", "b"), ("a", "c"), ("b", "c")}


def test_the_opposite_is_the_same_too():
    """ρ = −1 is flagged."""
    assert component_moments([_scored(a=0.0, b=1.0), _scored(a=1.0, b=0.0)]).highly_correlated() == {("a", "b"): -1.0}


def test_joined_moments_are_those_of_all_episodes():
    """Also in the summary of two rounds, and with a round in which nothing was judged."""
    whole = component_moments(ROLLOUT)
    joined = summarize(ROLLOUT[:1]).joined(summarize(ROLLOUT[1:])).moments
    assert joined.statistics() == whole.statistics()
    nothing = summarize([make_trajectory(stop="failed")])
    assert nothing.joined(summarize(ROLLOUT)).moments == whole
    assert nothing.moments.statistics() == nothing.moments.correlations() == {}


def test_an_episode_that_lacks_a_component_is_left_out():
    """Two of three have both."""
    assert component_moments([*ROLLOUT[:2], _scored(a=0.3)]).count == 2


def test_repaired_and_malformed_calls_are_counted():
    """Two calls, of which one was repaired, beside a malformed one; kept in Parquet and added over rollouts."""
    calls = (ToolCall(name="f", arguments={}, repaired="no arguments"), ToolCall(name="g", arguments={}))
    message = Message(role="assistant", content="{", tool_calls=calls, malformed="not a tool call: {")
    rows = turns_to_rows((Turn(message=message, start=0, stop=1),))
    turns = turns_from_rows(rows)
    assert [call.repaired for call in turns[0].message.tool_calls] == ["no arguments", None]
    counts = summarize([make_trajectory(turns=turns)]).calls
    assert counts == CallCounts(parsed=2, repaired=1, malformed=1)
    assert counts.joined(counts) == CallCounts(parsed=4, repaired=2, malformed=2)


def _replies(scenario: str, sample: int, opening: list[int], *replies: list[int]) -> Trajectory:
    """An episode of an opening and replies of these tokens, each followed by one token of the environment."""
    ids, mask, turns = [*opening], [False] * len(opening), []
    for reply in replies:
        turns.append(Turn(message=Message(role="assistant", content=""), start=len(ids), stop=len(ids) + len(reply)))
        ids += [*reply, 0]
        mask += [True] * len(reply) + [False]
    return make_trajectory(
        scenario_id=scenario,
        sample=sample,
        turns=tuple(turns),
        token_ids=np.array(ids, dtype=np.int32),
        loss_mask=np.array(mask),
        sampler_logprobs=np.zeros(len(ids), dtype=np.float32),
    )


def test_replies_that_ignore_the_scenario_are_noticed_and_those_that_name_it_are_not():
    """4 scenarios of 5 samples. The tokens of the prompt, which differ, do not count."""
    agnostic = [_replies(f"s{k}", j, [50 + k], [j, j]) for k in range(4) for j in range(5)]
    reading = [_replies(f"s{k}", j, [50 + k], [k, j]) for k in range(4) for j in range(5)]
    ignored, read = summarize(agnostic), summarize(reading)
    assert (ignored.input_agnostic, read.input_agnostic) == (True, False)
    assert (read.mutual_information or 0) > (ignored.mutual_information or 0) + 0.2


def test_the_first_turn_is_left_out_if_all_scenarios_open_alike():
    """The first reply is the same and has to be. The second one names the scenario."""
    alike = [_replies(f"s{k}", j, [50], [9] * 30, [k]) for k in range(4) for j in range(5)]
    assert not summarize(alike).input_agnostic
    assert summarize([_replies(f"s{k}", j, [50], [9]) for k in range(4) for j in range(5)]).mutual_information is None


def test_a_few_replies_are_not_measured():
    """15 replies, and 16 of two scenarios."""
    few = [_replies(f"s{k}", j, [50 + k], [k]) for k in range(3) for j in range(5)]
    pair = [_replies(f"s{k}", j, [50 + k], [k]) for k in range(2) for j in range(8)]
    for trajectories in (few, pair):
        summary = summarize(trajectories)
        assert (summary.mutual_information, summary.input_agnostic) == (None, False)


def test_rounds_are_input_agnostic_only_together():
    """The mean of both rounds by episodes; a round that was not measured has no part."""
    agnostic = summarize([_replies(f"s{k}", j, [50 + k], [j]) for k in range(4) for j in range(5)])
    reading = summarize([_replies(f"t{k}", j, [50 + k], [k]) for k in range(4) for j in range(5)])
    nothing = summarize([_judged("a", 1.0)])
    joined = agnostic.joined(reading)
    assert not joined.input_agnostic
    assert agnostic.joined(nothing).input_agnostic
    assert not nothing.joined(nothing).input_agnostic
    values = [agnostic.mutual_information or 0, reading.mutual_information or 0]
    assert joined.mutual_information == pytest.approx(sum(values) / 2)


def test_turn_rewards_are_compared_with_success_over_all_rounds():
    """Each group: x ½ −½, y −½ ½, Σ xy = −½. Two rounds: ρ = −1."""
    groups = [
        [
            _judged(name, 0.0, turn_rewards=(1.0,), outcome=Outcome(success=False)),
            _judged(name, 1.0, turn_rewards=(0.0,), outcome=Outcome(success=True)),
        ]
        for name in "abcd"
    ]
    first, second = summarize([*groups[0], *groups[1]]), summarize([*groups[2], *groups[3]])
    joined = first.joined(second).turn_rewards
    assert joined is not None
    assert (joined.groups, joined.episodes, joined.products) == (4, 8, -2.0)
    assert joined.correlation is not None
    assert joined.correlation.value == pytest.approx(-1.0)
    plain = summarize([_judged("a", 1.0)])
    assert plain.turn_rewards is None
    assert first.joined(plain).turn_rewards == first.turn_rewards


def test_a_component_that_some_episodes_lack_is_averaged_over_those_that_have_it():
    """1 of 2 episodes with 1, then 3 of 3 with 0: a quarter, and not the half of 1 and 0."""
    first = [_judged("a", 1.0, breakdown={"tone": 1.0}), _judged("a", 0.0, breakdown={})]
    second = [_judged("b", 0.0, breakdown={"tone": 0.0}) for _ in range(3)]
    joined = summarize(first).joined(summarize(second))
    assert joined.components == {"tone": 0.25}
    assert joined.component_counts == {"tone": 4}
