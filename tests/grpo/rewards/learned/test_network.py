from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from grpo.errors import ArtifactError
from grpo.rewards.learned.features import PromptedReply, hash_features
from grpo.rewards.learned.model_card import CARD, WEIGHTS
from grpo.rewards.learned.network import Network, gradient_step, pair_loss, read_network, reward_loss, write_network
from tests.grpo.rewards.learned.polite_replies import message

FEATURES = hash_features(
    [PromptedReply(prompt=(message("user", "hi"),), reply=message("assistant", text)) for text in ("a b", "b c")],
    buckets=8,
)


def test_the_loss_of_a_pair_is_bradley_terrys():
    """Scores 1 and 0: −log σ(1) = .3133, gradient ∓σ(−1) = ∓.2689; equal scores: ln 2, ∓½."""
    for scores, expected in (([1.0, 0.0], (0.31326, -0.26894, 0.26894)), ([3.0, 3.0], (np.log(2), -0.5, 0.5))):
        better, worse = (torch.tensor([score], requires_grad=True) for score in scores)
        loss = pair_loss(better, worse)
        loss.backward()
        assert (loss.item(), better.grad.item(), worse.grad.item()) == pytest.approx(expected, abs=1e-5)


def test_the_loss_of_rewards_is_the_squared_error_of_the_sigmoid():
    """σ(0) = ½ against 1 and .2: (.25 + .09) / 2 = .17; gradient (½ − r) · ¼: −.125, .075"""
    scores = torch.zeros(2, requires_grad=True)
    loss = reward_loss(scores, [1.0, 0.2])
    loss.backward()
    assert (loss.item(), *scores.grad.tolist()) == pytest.approx((0.17, -0.125, 0.075))


def test_a_score_is_the_wide_part_plus_the_deep_part():
    """One feature of value 1 in bucket 2: 3 + .5 · tanh(.1 · 2) + .25 = 3.3487"""
    network = Network(buckets=4, embedding_dim=1, hidden_dim=1)
    weights = {"wide": [0.0, 0.0, 3.0, 0.0], "embedding": [[0.0], [0.0], [0.1], [0.0]], "hidden": [[2.0]],
               "bias": [0.0], "out": [0.5], "shift": [0.25]}  # fmt: skip
    network.load_state_dict({name: torch.tensor(weight) for name, weight in weights.items()})
    features = csr_matrix(np.array([[0, 0, 1, 0]], dtype=np.float32))
    assert network.scores(features)[0] == pytest.approx(3.3487, abs=1e-4)


def test_a_step_moves_every_weight_that_the_loss_depends_on():
    """The second step; in the first `out` is 0 and the deep part gets no gradient."""
    network = Network(buckets=8, embedding_dim=3, hidden_dim=2, seed=1)
    optimizer = network.adamw(learning_rate=0.01)
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    losses = [gradient_step(optimizer, reward_loss(network(FEATURES), [1.0, 0.2])) for _ in range(2)]
    assert losses[1] < losses[0]
    assert all(not torch.equal(weight, before[name]) for name, weight in network.state_dict().items())


def test_a_stored_network_gives_the_same_scores(polite: Path, tmp_path: Path):
    """To the last bit, after another round through the files."""
    network, card = read_network(polite)
    assert write_network(tmp_path / "again", network, card) == card
    again, _ = read_network(tmp_path / "again")
    features = hash_features([PromptedReply(prompt=(), reply=message("assistant", "gladly"))], buckets=network.buckets)
    assert network.scores(features) == again.scores(features) == network.scores(features)


def test_a_damaged_model_is_refused(polite: Path, tmp_path: Path):
    """One flipped byte in the weights, an empty card, no card."""
    write_network(tmp_path, *read_network(polite))
    weights = bytearray((tmp_path / WEIGHTS).read_bytes())
    weights[-1] ^= 1
    (tmp_path / WEIGHTS).write_bytes(weights)
    with pytest.raises(ArtifactError, match="is damaged"):
        read_network(tmp_path)
    (tmp_path / CARD).write_text("{}")
    with pytest.raises(ArtifactError, match="not the card of a learned reward"):
        read_network(tmp_path)
    (tmp_path / CARD).unlink()
    with pytest.raises(ArtifactError, match=r"card\.json is missing"):
        read_network(tmp_path)
