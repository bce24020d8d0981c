from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from grpo.config.training import TrainingSettings
from grpo.errors import DataError, NoLearningSignal, PolicyError
from grpo.learner.batch import Sample, build_batch, make_minibatches
from grpo.messages import Message
from grpo.trajectories import PolicySpan, Trajectory, TrajectoryGroup, Turn
from tests.doubles import make_trajectory

PLAIN, SCALED = TrainingSettings(scale_by_std=False), TrainingSettings()


def make_group(*rewards: float | None, scenario: str = "s") -> TrajectoryGroup:
    members = tuple(
        make_trajectory(
            scenario_id=scenario,
            sample=k,
            token_ids=np.array([1, 2, 3], dtype=np.int32),
            loss_mask=np.array([False, True, True]),
            sampler_logprobs=np.array([0, -1, -1], dtype=np.float32),
            terminal_reward=reward,
        )
        for k, reward in enumerate(rewards)
    )
    return TrajectoryGroup(scenario_id=scenario, trajectories=members)


def make_sample(length: int, place: str = "") -> Sample:
    return Sample(
        token_ids=np.zeros(length, dtype=np.int32),
        loss_mask=np.ones(length, dtype=np.bool_),
        sampler_logprobs=np.zeros(length, dtype=np.float32),
        advantages=np.ones(length, dtype=np.float32),
        temperature=1.0,
        place=place,
    )


def test_groups_that_are_all_equal_are_dropped_and_counted():
    """Two of three groups are informative: share 2/3, and all 6 samples stay in the denominator."""
    groups = [make_group(0, 1, scenario="a"), make_group(1, 1, scenario="b"), make_group(1, 0, scenario="c")]
    batch = build_batch(groups, PLAIN, policy_hash="p")
    assert [[s.advantages.max(initial=0) + s.advantages.min(initial=0) for s in group] for group in batch.groups] == [
        [-0.5, 0.5],
        [0.5, -0.5],
    ]
    assert batch.informative_share == pytest.approx(2 / 3)
    assert batch.sample_count == 6


def test_a_failed_trajectory_has_no_gradient():
    """[1, None, 0]: two samples, ±.5"""
    batch = build_batch([make_group(1, None, 0)], PLAIN, policy_hash="p")
    assert [s.advantages.tolist() for s in batch.groups[0]] == [[0, 0.5, 0.5], [0, -0.5, -0.5]]
    assert batch.sample_count == 2


def test_equal_rewards_raise_no_learning_signal():
    """A constant reward ends the run with its reason."""
    with pytest.raises(NoLearningSignal, match="no learning signal: in all 2 groups"):
        build_batch([make_group(1, 1), make_group(0, 0, scenario="t")], SCALED, policy_hash="p")


def test_rewards_that_are_all_null_are_refused():
    """None everywhere is not a reward of 0, and a later rollout cannot correct it."""
    with pytest.raises(DataError, match="none of the 2 trajectories has a reward"):
        build_batch([make_group(None, None)], SCALED, policy_hash="p")


def test_trajectories_without_completion_tokens_are_refused():
    """The prompt alone fills the context: there are rewards, and no completion."""
    mute = [replace(t, loss_mask=np.zeros(3, dtype=np.bool_)) for t in make_group(0, 1).trajectories]
    with pytest.raises(
        DataError, match=r"none of the 2 .* has a completion token, .*up to 3 tokens.*rollout\.max_context"
    ):
        build_batch([TrajectoryGroup(scenario_id="s", trajectories=tuple(mute))], SCALED, policy_hash="p")


def test_maxrl_divides_by_the_mean_of_the_group():
    """[1 0 0]: mean ⅓, advantages 2 −1 −1 on both completion tokens."""
    batch = build_batch([make_group(1, 0, 0)], TrainingSettings(algorithm="maxrl"), policy_hash="p")
    assert [s.advantages.tolist() for s in batch.groups[0]] == [[0, 2, 2], [0, -1, -1], [0, -1, -1]]


def test_maxrl_is_the_mean_score_of_the_successes_minus_that_of_all():
    """The estimator as the paper writes it (arXiv 2602.02710), on 200 random groups of 2 to 16 episodes.

    1/K Σ_i r_i S_i − 1/N Σ_i S_i with K successes and the scores S_i = ∇log π of the episodes. It is zero if K = 0, and
    if all succeed both terms are the same. Groups without a difference have no sample in a batch.
    """
    rng = np.random.default_rng(0)
    for _ in range(200):
        size = int(rng.integers(2, 17))
        rewards = (rng.random(size) < rng.random()).astype(float)
        scores = rng.normal(size=(size, 5))
        informative = 0 < rewards.sum() < size
        expected = scores[rewards == 1].mean(0) - scores.mean(0) if informative else np.zeros(5)
        settings = TrainingSettings(algorithm="maxrl")
        groups = [make_group(*rewards), make_group(1, 0, scenario="other")]
        samples = [group for group in build_batch(groups, settings, policy_hash="p").groups if len(group) == size]
        advantages = [sample.advantages[1] for sample in samples[0]] if informative else np.zeros(size)
        assert np.asarray(advantages) @ scores / size == pytest.approx(expected, abs=1e-6)


def test_maxrl_refuses_rewards_below_zero_with_their_scenario():
    """A penalty in one episode of one group."""
    with pytest.raises(DataError, match=r"^scenario s: a reward of -0.5 is below 0.*training\.algorithm maxrl"):
        build_batch([make_group(1, -0.5)], TrainingSettings(algorithm="maxrl"), policy_hash="p")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("baseline", "group_median"), ("scale_by_std", False), ("normalize_rewards", True), ("credit_assignment", "turn")],
)
def test_maxrl_refuses_what_it_does_not_read(setting: str, value: object):
    """Its baseline and its divisor are the mean of the group."""
    with pytest.raises(ValueError, match=f"{setting} has no effect with algorithm maxrl"):
        TrainingSettings.model_validate({"algorithm": "maxrl", setting: value})


def test_maxrl_refuses_the_overlong_penalty():
    """It makes rewards negative."""
    with pytest.raises(ValueError, match="overlong_limit gives rewards below 0"):
        TrainingSettings(algorithm="maxrl", overlong_limit=100)


def test_a_group_of_one_is_refused():
    """The error names the scenario and the setting."""
    with pytest.raises(DataError, match=r"scenario s: a group needs at least 2.*group_size"):
        build_batch([make_group(1)], SCALED, policy_hash="p")


def test_a_rollout_of_another_policy_is_refused():
    """Training on the tokens of another policy would be off-policy without a correction."""
    with pytest.raises(PolicyError, match="sampled by policy p, but the checkpoint is q"):
        build_batch([make_group(0, 1)], SCALED, policy_hash="q")


def test_every_policy_of_a_trajectory_must_be_one_that_the_update_corrects():
    """Its tokens are of p and o. Both have to be the checkpoint or an earlier policy."""
    group = make_group(0, 1)
    spans = (PolicySpan(policy_hash="p", start=1), PolicySpan(policy_hash="o", start=2))
    mixed = replace(group, trajectories=tuple(replace(t, policy_spans=spans) for t in group.trajectories))
    with pytest.raises(PolicyError, match="sampled by policy o, but the checkpoint is p"):
        build_batch([mixed], SCALED, policy_hash="p")
    batch = build_batch([mixed], SCALED, policy_hash="q", earlier_hashes=("p", "o"))
    assert batch.sample_count == 2


def test_log_probabilities_that_are_not_finite_are_refused():
    """NaN in one row names that row."""
    group = make_group(0, 1)
    bad = replace(group.trajectories[1], sampler_logprobs=np.array([0, np.nan, -1], dtype=np.float32))
    with pytest.raises(DataError, match="scenario s sample 1"):
        build_batch([replace(group, trajectories=(group.trajectories[0], bad))], SCALED, policy_hash="p")


def test_minibatches_keep_groups_whole():
    """5 groups, at most 3 a minibatch: minibatches of 3 and 2 groups, every sample once."""
    groups = [(make_sample(1, f"{k}a"), make_sample(1, f"{k}b")) for k in range(5)]
    minibatches = make_minibatches(groups, TrainingSettings(groups_per_step=3), rng=np.random.default_rng(0))
    assert sorted(len(minibatch) for minibatch in minibatches) == [4, 6]
    assert sorted(s.place for minibatch in minibatches for s in minibatch) == sorted(s.place for g in groups for s in g)
    for minibatch in minibatches:
        assert {s.place[0] for s in minibatch if s.place.endswith("a")} == {
            s.place[0] for s in minibatch if s.place.endswith("b")
        }


def test_few_groups_make_one_minibatch():
    """One group where eight fit, or no limit: one step."""
    for count, groups_per_step in ((1, 8), (20, None)):
        settings = TrainingSettings(groups_per_step=groups_per_step)
        assert len(make_minibatches([(make_sample(1),)] * count, settings, rng=np.random.default_rng(0))) == 1


def test_a_number_of_minibatches_splits_the_shuffled_episodes():
    """5 groups of 2 in 4 minibatches: 3, 3, 2 and 2 samples, every sample once, and siblings are apart in some."""
    groups = [(make_sample(1, f"{k}a"), make_sample(1, f"{k}b")) for k in range(5)]
    minibatches = make_minibatches(groups, TrainingSettings(num_mini_batches=4), rng=np.random.default_rng(0))
    assert [len(minibatch) for minibatch in minibatches] == [3, 3, 2, 2]
    places = [[sample.place for sample in minibatch] for minibatch in minibatches]
    assert sorted(place for own in places for place in own) == [f"{k}{sibling}" for k in range(5) for sibling in "ab"]
    assert any({place[0] for place in own} & {place[0] for place in other} for own, other in pairwise(places))
    again = make_minibatches(groups, TrainingSettings(num_mini_batches=4), rng=np.random.default_rng(0))
    assert [[sample.place for sample in minibatch] for minibatch in again] == places


def test_each_minibatch_has_episodes_with_an_advantage():
    """Of 8 samples with a KL gradient 2 have an advantage: two minibatches instead of four, each with one of them."""
    group = tuple(replace(make_sample(1), advantages=np.full(1, k < 2, dtype=np.float32)) for k in range(8))
    minibatches = make_minibatches([group], TrainingSettings(num_mini_batches=4), rng=np.random.default_rng(0))
    assert [sum(sample.advantages.any() for sample in minibatch) for minibatch in minibatches] == [1, 1]
    assert [len(minibatch) for minibatch in minibatches] == [4, 4]


def test_no_minibatch_is_empty():
    """Eight minibatches of three samples: three."""
    minibatches = make_minibatches(
        [tuple(make_sample(1) for _ in range(3))], TrainingSettings(num_mini_batches=8), rng=np.random.default_rng(0)
    )
    assert [len(minibatch) for minibatch in minibatches] == [1, 1, 1]


def _advantages(rewards: list[list[float | None]], **settings: object) -> list[list[float]]:
    """The advantage of each sibling that teaches something, group by group."""
    groups = [make_group(*row, scenario=str(k)) for k, row in enumerate(rewards)]
    batch = build_batch(groups, TrainingSettings.model_validate(settings), policy_hash="p")
    return [[float(s.advantages[-1]) for s in group] for group in batch.groups]


def test_the_baseline_is_the_algorithms_own_unless_one_is_set():
    """[1 0 0]: rloo compares with the others, 1 − 0 and 0 − ½; grpo with a median of 0 leaves one sample."""
    assert _advantages([[1, 0, 0]], algorithm="rloo") == [[1.0, -0.5, -0.5]]
    assert _advantages([[1, 0, 0]], baseline="group_median", scale_by_std=False) == [[1.0]]


def test_with_the_global_mean_a_constant_group_has_a_gradient():
    """Rewards [1 1] and [0 1], mean .75: reinforce gives .25 .25 and −.75 .25."""
    assert _advantages([[1, 1], [0, 1]], algorithm="reinforce") == [[0.25, 0.25], [-0.75, 0.25]]


def test_rewards_are_clipped_and_normalized_before_the_advantages():
    """[4 0] clipped to [1 0] → ±.5; [4 0] over its standard deviation 2 → ±1."""
    assert _advantages([[4, 0]], scale_by_std=False, reward_clip=1.0) == [[0.5, -0.5]]
    scaled = _advantages([[4, 0]], scale_by_std=False, normalize_rewards=True)
    assert scaled == [pytest.approx([1.0, -1.0], abs=1e-3)]


def test_clipped_rewards_are_counted():
    """Of 4, 0, −2 and none two lie beyond 1; without a limit none does."""
    groups = [make_group(4, 0, -2, None)]
    counts = [
        build_batch(groups, TrainingSettings(reward_clip=clip), policy_hash="p").clipped_rewards for clip in (1, None)
    ]
    assert counts == [2, 0]


def test_long_replies_have_a_penalty():
    """Equal rewards; limit 3, buffer 2: 3 tokens cost 1, 2 cost ½, so the advantages are −¼ and ¼."""
    groups = [make_group(1, 0)]
    longer = replace(
        groups[0].trajectories[0], loss_mask=np.array([True, True, True]), terminal_reward=1.0
    )  # 3 completion tokens: −1
    shorter = replace(groups[0].trajectories[1], terminal_reward=1.0)  # 2 tokens: −.5
    settings = TrainingSettings(scale_by_std=False, overlong_limit=3, overlong_buffer=2)
    batch = build_batch([replace(groups[0], trajectories=(longer, shorter))], settings, policy_hash="p")
    assert [float(s.advantages[-1]) for s in batch.groups[0]] == [-0.25, 0.25]


def test_credit_by_turn_reaches_the_tokens_of_that_turn():
    """Turn rewards [1 0] and [0 0], terminal 0 and 1: turn 0 equal, turn 1 −.5 and .5."""

    def played(sample: int, rewards: tuple[float, ...], terminal: float) -> Trajectory:
        messages = [Message(role="assistant", content="x")] * 2
        return make_trajectory(
            sample=sample,
            turns=tuple(Turn(message=m, start=1 + 2 * k, stop=2 + 2 * k) for k, m in enumerate(messages)),
            token_ids=np.arange(4, dtype=np.int32),
            loss_mask=np.array([False, True, False, True]),
            sampler_logprobs=np.zeros(4, dtype=np.float32),
            turn_rewards=rewards,
            terminal_reward=terminal,
        )

    siblings = TrajectoryGroup(scenario_id="s", trajectories=(played(0, (1.0, 0.0), 0.0), played(1, (0.0, 0.0), 1.0)))
    settings = TrainingSettings(credit_assignment="turn", scale_by_std=False)
    batch = build_batch([siblings], settings, policy_hash="p")
    assert [s.advantages.tolist() for s in batch.groups[0]] == [[0, 0, 0, -0.5], [0, 0, 0, 0.5]]
    short = played(0, (1.0,), 0.0)
    for stop in ("truncated", "turn_limit"):
        cut = replace(siblings, trajectories=(replace(short, stop=stop), siblings.trajectories[1]))
        (group,) = build_batch([cut], settings, policy_hash="p").groups
        assert [s.advantages.tolist() for s in group] == [[0, 0, 0, -0.5], [0, 0, 0, 0.5]]  # a cut turn got no reward
    with pytest.raises(ValueError, match="Set baseline to group_mean"):
        TrainingSettings(credit_assignment="turn", algorithm="reinforce")
    odd = replace(siblings, trajectories=(short, siblings.trajectories[1]))
    with pytest.raises(DataError, match=r"sample 0 has 1 turn rewards for 2 turns"):
        build_batch([odd], settings, policy_hash="p")


def test_samples_of_a_critic_have_rewards_without_advantages():
    """The reward of each sibling at its last token, of groups that are all equal, too; one without a reward is out."""
    cut = make_group(1, None, 0, scenario="a")
    last = replace(cut.trajectories[2], stop="truncated")
    groups = [
        TrajectoryGroup(scenario_id="a", trajectories=(*cut.trajectories[:2], last)),
        make_group(1, 1, scenario="b"),
    ]
    batch = build_batch(groups, TrainingSettings(algorithm="ppo"), policy_hash="p")
    assert [[s.rewards.tolist() for s in members] for members in batch.groups] == [  # type: ignore[union-attr]
        [[0, 0, 1], [0, 0, 0]],
        [[0, 0, 1], [0, 0, 1]],
    ]
    assert [[s.truncated for s in members] for members in batch.groups] == [[False, True], [False, False]]
    assert not any(sample.advantages.any() for members in batch.groups for sample in members)
    assert (batch.informative, batch.group_count, batch.sample_count, batch.token_count) == (2, 2, 4, 8)


def test_a_critic_has_no_signal_where_every_reward_is_equal():
    """Two groups of the same reward, and as many episodes."""
    groups = [make_group(1, 1, scenario="a"), make_group(1, 1, scenario="b")]
    with pytest.raises(NoLearningSignal, match="in all 2 groups"):
        build_batch(groups, TrainingSettings(algorithm="a2c"), policy_hash="p")


def _without_loss_tokens(group: TrajectoryGroup, *turns: Turn) -> TrajectoryGroup:
    mask = np.zeros(3, dtype=np.bool_)
    return replace(group, trajectories=tuple(replace(t, loss_mask=mask, turns=turns) for t in group.trajectories))


OVERRIDDEN = Turn(message=Message(role="assistant", content="x"), start=1, stop=3)


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        (
            _without_loss_tokens(make_group(0, 1), OVERRIDDEN),
            "no sampled token is left to train on, because the agent's own code overrides the text of its turns. Let "
            "process_turn and generate_response return their argument unchanged, or evaluate this agent",
        ),
        (
            _without_loss_tokens(make_group(0, 1)),
            "none of the 2 trajectories has a completion token, because prompts of up to 3 tokens leave no room for a "
            "reply. Raise rollout.max_context, or use a policy with a longer context",
        ),
        (
            make_group(None, None),
            "none of the 2 trajectories has a reward. Score the rollout, and see the errors of its "
            "episodes and rewards",
        ),
        (make_group(1), "scenario s: a group needs at least 2 trajectories, got 1. Raise rollout.group_size"),
    ],
)
def test_untrainable_trajectories_are_refused_with_a_remedy(group: TrajectoryGroup, reason: str):
    """The whole message."""
    with pytest.raises(DataError) as refusal:
        build_batch([group], SCALED, policy_hash="p")
    assert str(refusal.value) == reason
