from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from grpo.config.rewards import RewardComponent
from grpo.errors import ArtifactError, ConfigError, DataError, RewardError, Unscored
from grpo.messages import Message, ToolCall
from grpo.rewards.catalog import make_reward
from grpo.rewards.learned.features import PromptedReply, bags, prompted_replies
from grpo.rewards.learned.losses import labels_loss, pairs_loss, rewards_loss
from grpo.rewards.learned.metrics import auc, pair_accuracy, wilson_interval
from grpo.rewards.learned.model_card import CARD, WEIGHTS, read_network, write_network
from grpo.rewards.learned.network import Network
from grpo.rewards.learned.neural import NeuralReward, create_neural_reward_function
from grpo.rewards.learned.training import held_out_mask, train_on_labels, train_on_pairs
from grpo.rewards.reward import RewardContext, RewardFunction
from grpo.scenarios.reward_data import LabelledReply, PreferencePair, read_labels, read_pairs
from tests.places import PUBLISHED

CONTEXT = RewardContext(scenario_id="s", category="c", stop="terminated")
POLITE, RUDE = ("gladly", "please", "welcome"), ("whatever", "nonsense", "bother")
FILLER = "the order ship item today number soon look list"


def said(role: str, text: str) -> Message:
    return Message(role=role, content=text)  # type: ignore[arg-type]


def reply(seed: int, *, polite: bool) -> str:
    random = np.random.default_rng(seed)
    words = [*random.choice(FILLER.split(), 6), random.choice(POLITE if polite else RUDE)]
    return " ".join(random.permutation(words))


def conversation(seed: int, *, polite: bool) -> list[Message]:
    return [said("user", "where is my order"), said("assistant", reply(seed, polite=polite))]


def preferences(count: int, *, by_lot: bool = False) -> list[PreferencePair]:
    """Pairs whose better side is polite, or is drawn by lot."""
    pairs = []
    for index in range(count):
        swapped = by_lot and np.random.default_rng(index).random() < 0.5
        sides = [said("assistant", reply(2 * index + side, polite=(side == 0) != swapped)) for side in (0, 1)]
        prompt = (said("user", "where is my order"),)
        pairs.append(
            PreferencePair(
                id=f"p{index}", group=f"g{index}", prompt=prompt, chosen=sides[0], rejected=sides[1],
                category="c", source="made up", licence="none",
            )
        )  # fmt: skip
    return pairs


def score(reward: RewardFunction, turns: Sequence[Message]) -> float:
    return asyncio.run(reward.compute_reward(turns, CONTEXT)).score


@pytest.fixture(scope="module")
def polite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward that learned to prefer polite replies."""
    folder = tmp_path_factory.mktemp("polite")
    pairs = preferences(300)
    train_on_pairs(pairs[:200], pairs[200:], folder, split="the last 100")
    return folder


def test_the_loss_of_a_pair_is_bradley_terrys():
    """Scores 1 and 0: −log σ(1) = .3133, gradient ∓σ(−1) = ∓.2689; equal scores: ln 2, ∓½."""
    value, gradient = pairs_loss(np.array([1.0, 0.0], np.float32))
    assert value == pytest.approx(0.31326, abs=1e-5)
    assert gradient == pytest.approx([-0.26894, 0.26894], abs=1e-5)
    value, gradient = pairs_loss(np.array([3.0, 3.0], np.float32))
    assert (value, *gradient) == pytest.approx((np.log(2), -0.5, 0.5))


@pytest.mark.parametrize(
    "loss", [pairs_loss, labels_loss(np.array([1.0, 0.0], np.float32)), rewards_loss(np.array([0.9, 0.2], np.float32))]
)
def test_every_gradient_is_the_slope_of_the_loss(loss):
    """Against central differences of each kind of weight, in float64."""
    seen = bags(
        [PromptedReply(context=(said("user", "hi"),), reply=said("assistant", t)) for t in ("a b", "b c")], buckets=8
    )
    small = Network.new(buckets=8, embedding_dim=3, hidden_dim=2, seed=1)
    network = Network(**{k: w.astype(np.float64) for k, w in small.weights.items()})
    network.out[...] = [0.5, -0.3]
    _, gradients = network.gradients(seen, loss)
    for name, weight in network.weights.items():
        slopes = np.zeros_like(weight)
        for place in np.ndindex(weight.shape):
            kept = weight[place]
            weight[place] = kept + 1e-4
            above, _ = loss(network.scores(seen))
            weight[place] = kept - 1e-4
            below, _ = loss(network.scores(seen))
            weight[place] = kept
            slopes[place] = (above - below) / 2e-4
        assert np.abs(slopes).max() > 1e-4 or (loss is pairs_loss and name == "shift")  # which is in both sides
        assert gradients[name] == pytest.approx(slopes, abs=1e-6), name


def test_auc_counts_pairs_in_order():
    """Good .9 .6, bad .7 .1: 3 of 4 pairs; all tied: ½."""
    measure = auc(np.array([0.9, 0.6, 0.7, 0.1]), [True, True, False, False])
    assert measure.value == 0.75
    assert auc(np.array([1.0, 1.0]), [True, False]).value == 0.5
    with pytest.raises(DataError, match="2 and 0"):
        auc(np.array([1.0, 2.0]), [True, True])


def test_the_interval_of_an_auc_is_delongs():
    """Good win (½, 1) of the bad, bad lose (½, 1): both variances ⅛; √(⅛/2 + ⅛/2) = .3536, times 1.96 = .693."""
    measure = auc(np.array([0.9, 0.6, 0.7, 0.1]), [True, True, False, False])
    assert measure.low == pytest.approx(0.75 - 0.693, abs=1e-3)
    assert measure.high == 1.0


def test_the_interval_of_a_share_is_wilsons():
    """8 of 10: z = 1.96, centre (.8 + .192)/1.384 = .7167, spread .2266; 0 of 5 begins at 0, 5 of 5 ends at 1."""
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson_interval(0, 5)[0] == pytest.approx(0, abs=1e-12)
    assert wilson_interval(5, 5)[1] == pytest.approx(1, abs=1e-12)


def test_a_tie_is_half_right():
    """One right, one tied: 1½ of 2."""
    assert pair_accuracy(np.array([1.0, 0.0]), np.array([0.0, 0.0])).value == 0.75


def test_a_reply_is_seen_in_its_context_and_calls_count():
    """The same words after another question, and the same call with another argument, are other features."""
    call = Message(role="assistant", content="", tool_calls=(ToolCall(name="find", arguments={"city": "Rome"}),))
    other = Message(role="assistant", content="", tool_calls=(ToolCall(name="find", arguments={"city": "Oslo"}),))
    rome = (said("user", "movies in Rome"),)
    seen = [PromptedReply(context=rome, reply=call), PromptedReply(context=rome, reply=other)]
    seen += [PromptedReply(context=(said("user", q),), reply=said("assistant", "yes")) for q in ("may I?", "shall we?")]
    found = bags(seen, buckets=1 << 20)
    places = [set(found.take(np.array([row])).buckets.tolist()) for row in range(4)]
    assert places[0] != places[1]
    assert places[2] != places[3]


def test_pairs_teach_what_is_better(polite: Path):
    """Above 80 % of 100 held-out pairs, and new conversations are told apart by the loaded reward."""
    _, card = read_network(polite)
    assert card.heldout is not None
    assert card.heldout.low > 0.8
    reward = NeuralReward(model=polite)
    assert score(reward, conversation(9001, polite=True)) > score(reward, conversation(9001, polite=False))


def test_a_loaded_reward_gives_the_same_scores(polite: Path, tmp_path: Path):
    """To the last bit, call after call, and after another round through the files."""
    network, card = read_network(polite)
    write_network(tmp_path / "again", network, card)
    one, two = NeuralReward(model=polite), NeuralReward(model=tmp_path / "again")
    for seed in range(5):
        turns = conversation(seed, polite=True)
        assert score(one, turns) == score(one, turns) == score(two, turns)


def test_a_damaged_model_is_refused(polite: Path, tmp_path: Path):
    """One flipped byte in the weights; no card; a card that is none."""
    write_network(tmp_path, *read_network(polite))
    weights = bytearray((tmp_path / WEIGHTS).read_bytes())
    weights[-1] ^= 1
    (tmp_path / WEIGHTS).write_bytes(weights)
    with pytest.raises(ArtifactError, match="is damaged"):
        NeuralReward(model=tmp_path)
    (tmp_path / CARD).write_text("{}")
    with pytest.raises(ArtifactError, match="no card of a learned reward"):
        NeuralReward(model=tmp_path)
    (tmp_path / CARD).unlink()
    with pytest.raises(ArtifactError, match=r"card\.json is missing"):
        NeuralReward(model=tmp_path)


def test_a_reward_that_may_be_guessing_is_refused(tmp_path: Path):
    """Labels by lot: the interval of its accuracy holds ½, and it may not judge."""
    pairs = preferences(120, by_lot=True)
    card = train_on_pairs(pairs[:80], pairs[80:], tmp_path, split="the last 40")
    assert card.heldout is not None
    assert card.heldout.low <= 0.5
    with pytest.raises(RewardError, match="may be guessing"):
        NeuralReward(model=tmp_path)


def test_the_config_reaches_both_learned_rewards(polite: Path):
    """By kind and options; what the agent never said cannot be judged."""
    reward = make_reward(
        [
            RewardComponent(kind="neural", weight=0.5, options={"model": str(polite)}),
            RewardComponent(kind="safety", weight=0.5),
        ]
    )
    result = asyncio.run(reward.compute_reward(conversation(1, polite=True), CONTEXT))
    assert set(result.breakdown) == {"neural", "safety"}
    with pytest.raises(Unscored, match="the agent said nothing"):
        asyncio.run(reward.compute_reward([said("user", "hello?")], CONTEXT))


def test_groups_are_held_out_whole():
    """No group stands on both sides, the same ones are held out each time, and one group alone cannot be split."""
    groups = [f"g{index % 40}" for index in range(200)]
    held = held_out_mask(groups)
    sides = {(group, bool(out)) for group, out in zip(groups, held, strict=True)}
    assert len(sides) == 40
    assert (held == held_out_mask(groups)).all()
    assert sum(held_out_mask(groups, part=part).sum() for part in range(5)) == 200
    with pytest.raises(DataError, match="of 1 groups"):
        held_out_mask(["one"] * 5)


def test_the_online_reward_learns_from_observed_rewards():
    """200 rated conversations: above 80 % of 100 new pairs are in order, at a smaller error than at first."""
    reward = create_neural_reward_function(embedding_dim=16, hidden_dim=16, learning_rate=3e-3, update_frequency=50)
    before = score(reward, conversation(1, polite=True))
    for seed in range(200):
        reward.observe(conversation(seed, polite=seed % 2 == 0), reward=float(seed % 2 == 0))
    right = sum(
        score(reward, conversation(seed, polite=True)) > score(reward, conversation(seed + 1, polite=False))
        for seed in range(5000, 5200, 2)
    )
    assert before == 0.5
    assert len(reward.losses) == 4
    assert reward.losses[-1] < reward.losses[0]
    assert right > 80


def test_the_online_reward_learns_only_when_it_is_time():
    """Scoring changes nothing; the third observation does, where an update comes after three."""
    reward = create_neural_reward_function(embedding_dim=4, hidden_dim=4, learning_rate=1e-2, update_frequency=3)
    turns = conversation(0, polite=True)
    for _ in range(2):
        reward.observe(turns, 1.0)
        assert score(reward, turns) == 0.5
    reward.observe(turns, 1.0)
    assert score(reward, turns) > 0.5


def test_the_online_reward_is_seeded_and_goes_on_from_its_folder(tmp_path: Path):
    """Two of one seed agree, and so does one that loads the folder; another size and an unmeasured one are refused."""
    rewards = [create_neural_reward_function(8, 8, 1e-2, update_frequency=10) for _ in range(3)]
    for reward in rewards[:2]:
        for seed in range(20):
            reward.observe(conversation(seed, polite=seed % 2 == 0), float(seed % 2 == 0))
    rewards[0].save(tmp_path)
    rewards[2].load(tmp_path)
    scores = {score(reward, conversation(77, polite=True)) for reward in rewards}
    assert len(scores) == 1
    assert scores != {0.5}
    with pytest.raises(ArtifactError, match="sizes"):
        create_neural_reward_function(4, 8).load(tmp_path)
    with pytest.raises(RewardError, match="never measured"):
        NeuralReward(model=tmp_path)


def test_an_observed_reward_has_bounds():
    """1.5 is no share."""
    with pytest.raises(ConfigError, match=r"1\.5; scale it"):
        create_neural_reward_function(4, 4).observe(conversation(0, polite=True), 1.5)


def test_every_reply_of_a_conversation_is_judged():
    """Two replies, two exchanges, each with what came before it."""
    turns = [said("user", "a"), said("assistant", "b"), said("user", "c"), said("assistant", "d")]
    assert [(len(e.context), e.reply.content) for e in prompted_replies(turns)] == [(1, "b"), (3, "d")]


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"no real data in {PUBLISHED}")
def test_real_preferences_are_learned(tmp_path: Path):
    """HH-RLHF: the held-out accuracy beats guessing; docs/rewards.md has the whole measure."""
    pairs = read_pairs("hh_rlhf_harmless", PUBLISHED / "hh_rlhf_harmless").items[:1000]
    held = held_out_mask([pair.prompt[0].content for pair in pairs], part=1)
    sides = [[pair for pair, out in zip(pairs, held, strict=True) if out == side] for side in (False, True)]
    card = train_on_pairs(*sides, tmp_path, split="a fifth")
    assert card.heldout is not None
    assert card.heldout.value > 0.54


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"no real data in {PUBLISHED}")
def test_judged_steps_of_real_dialogues_are_learned(tmp_path: Path):
    """Taskmaster-4, whole dialogues held out: AUC above .58; docs/rewards.md has the whole measure."""
    steps = [item for item in read_labels("taskmaster", PUBLISHED / "taskmaster").items if item.category == "tm4"]
    held = held_out_mask([json.dumps([message.content for message in item.prompt[:2]]) for item in steps])
    sides = [[item for item, out in zip(steps, held, strict=True) if out == side] for side in (False, True)]
    card = train_on_labels(*sides, tmp_path, split="a fifth")
    assert card.heldout is not None
    assert card.heldout.value > 0.58


def test_labels_without_order_teach_nothing(tmp_path: Path):
    """A label alone does not say what is good."""
    item = LabelledReply(
        id="i", group="g", prompt=(said("user", "a"),), reply=said("assistant", "b"), label="odd",
        category="c", source="made up", licence="none",
    )  # fmt: skip
    with pytest.raises(DataError, match="reply i has a label without a score"):
        train_on_labels([item], [item], tmp_path, split="none")
