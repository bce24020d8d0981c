from __future__ import annotations

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from grpo.errors import DataError, PolicyError, RewardError, Unscored
from grpo.learner.trl.dpo_trainer import TokenizedPair
from grpo.learner.trl.reward_model import (
    NeuralRewardTrainer,
    RewardModelReport,
    TransformerReward,
    predict_reward,
    train_reward_model,
)
from grpo.messages import Message
from grpo.policy.tokenizer import load_tokenizer
from grpo.rewards.learned.model_card import ModelCard
from grpo.rewards.reward import RewardContext, RewardFunction
from grpo.scenarios.reward_data import PreferencePair

CONTEXT = RewardContext(scenario_id="s", category="c", stop="terminated")
PROMPT = (Message(role="user", content="my order is broken"),)
GOOD, BAD = 40, 41  # tokens of the chosen sides alone and of the rejected sides alone


def labelled(count: int, *, shuffled: bool = False, seed: int = 4) -> list[TokenizedPair]:
    """Random conversations with GOOD in the chosen side and BAD in the rejected side; labels may be random."""
    rng = np.random.default_rng(seed)
    pairs = []
    for index in range(count):
        sides = []
        for word in (GOOD, BAD):
            ids = rng.integers(60, 200, int(rng.integers(4, 9))).astype(np.int32)
            ids[rng.integers(1, len(ids))] = word
            sides.append(ids)
        chosen, rejected = reversed(sides) if shuffled and rng.random() < 0.5 else sides
        pairs.append(
            TokenizedPair(
                prompt_ids=rng.integers(60, 200, 4).astype(np.int32),
                chosen_ids=chosen,
                chosen_mask=np.ones(len(chosen), dtype=np.bool_),
                rejected_ids=rejected,
                rejected_mask=np.ones(len(rejected), dtype=np.bool_),
                scenario_id=f"s{index}",
            )
        )
    return pairs


@pytest.fixture(scope="module")
def trained(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RewardModelReport, Path]:
    folder = tmp_path_factory.mktemp("reward")
    report = train_reward_model(
        labelled(120), tiny_folder, folder, learning_rate=3e-3, epochs=3, validation_fraction=0.3
    )
    return report, folder


def test_a_token_of_the_chosen_sides_is_learned(trained: tuple[RewardModelReport, Path]):
    """The interval of the held-out accuracy is above chance, and the loss is below ln 2."""
    report, _ = trained
    assert (report.trained_pairs, report.heldout_pairs) == (84, 36)
    assert report.low > 0.5
    assert report.loss < math.log(2)


def test_random_labels_give_the_accuracy_of_guessing(tiny_folder: Path, tmp_path: Path):
    """With the same pairs in random order chance stays within the interval."""
    pairs = labelled(120, shuffled=True)
    report = train_reward_model(
        pairs, tiny_folder, tmp_path / "reward", learning_rate=3e-3, epochs=3, validation_fraction=0.3
    )
    assert report.low <= 0.5 <= report.high


def test_a_saved_reward_model_ranks_new_conversations(trained: tuple[RewardModelReport, Path]):
    """The folder holds safetensors with one output, which transformers loads by itself."""
    _, folder = trained
    assert not list(folder.glob("*.bin"))
    model = AutoModelForSequenceClassification.from_pretrained(folder, use_safetensors=True).eval()
    pairs = labelled(40, seed=5)
    better = [
        predict_reward(model, np.concatenate([p.prompt_ids, p.chosen_ids]))
        > predict_reward(model, np.concatenate([p.prompt_ids, p.rejected_ids]))
        for p in pairs
    ]
    assert sum(better) > 0.8 * len(pairs)


def test_the_same_seed_gives_the_same_model(tiny_folder: Path, tmp_path: Path):
    """Bit by bit, whatever random numbers were drawn before."""
    for name in ("first", "second"):
        torch.rand(7)
        train_reward_model(labelled(20), tiny_folder, tmp_path / name, validation_fraction=0.5, seed=3)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second"))
    assert first == second


def test_pairs_of_one_scenario_cannot_be_held_out(tiny_folder: Path, tmp_path: Path):
    """All pairs come from one scenario: an error, not an accuracy on training pairs."""
    pair = labelled(1)[0]
    with pytest.raises(DataError, match="of 1 scenarios leaves 1 for training and 0 held out"):
        train_reward_model([pair] * 6, tiny_folder, tmp_path / "reward")


def test_a_folder_without_safetensors_is_refused(tiny_folder: Path, tmp_path: Path):
    """A tokenizer alone is not a base model."""
    for path in tiny_folder.glob("tokenizer*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(PolicyError, match=r"no \*\.safetensors"):
        train_reward_model(labelled(10), tmp_path, tmp_path / "reward")


def agent(word: str, seed: int) -> Message:
    random = np.random.default_rng(seed)
    words = [*random.choice(["the", "order", "look", "up", "hello", "number", "there"], 4), word]
    return Message(role="assistant", content=" ".join(random.permutation(words)))


def text_pairs(
    count: int, *, better: str = "hello", worse: str = "broken", shuffled: bool = False
) -> list[PreferencePair]:
    pairs = []
    for index in range(count):
        words = (worse, better) if shuffled and np.random.default_rng(index).random() < 0.5 else (better, worse)
        pairs.append(
            PreferencePair(
                id=f"p{index}", group=f"g{index}", prompt=PROMPT, category="c", source="invented", licence="none",
                chosen=agent(words[0], 2 * index), rejected=agent(words[1], 2 * index + 1),
            )
        )  # fmt: skip
    return pairs


def score(reward: RewardFunction, reply: Message) -> float:
    return asyncio.run(reward.compute_reward([*PROMPT, reply], CONTEXT)).score


def test_pairs_train_a_small_network_from_scratch(tmp_path: Path):
    """It prefers the chosen replies, and the interval of its held-out accuracy is above chance."""
    trainer = NeuralRewardTrainer("ngrams", text_pairs(200, better="gladly"), folder=tmp_path)
    reward = asyncio.run(trainer.train())
    assert isinstance(trainer.report, ModelCard)
    assert trainer.report.heldout is not None
    assert trainer.report.heldout.low > 0.5
    assert score(reward, agent("gladly", 9001)) > score(reward, agent("broken", 9002))


def test_pairs_train_a_transformer(tiny_folder: Path, tmp_path: Path):
    """The loss falls below ln 2, and the reward of a conversation is deterministic."""
    trainer = NeuralRewardTrainer(tiny_folder, text_pairs(150), folder=tmp_path, learning_rate=3e-3, epochs=4)
    reward = asyncio.run(trainer.train())
    assert isinstance(trainer.report, RewardModelReport)
    assert trainer.report.low > 0.5
    assert trainer.report.loss < np.log(2)
    replies = agent("hello", 9001), agent("broken", 9002)
    scores = [score(reward, reply) for reply in (*replies, *replies)]
    assert scores[0] > scores[1]
    assert scores[:2] == scores[2:]


@pytest.mark.parametrize("kind", ["ngrams", "transformer"])
def test_a_reward_that_may_be_guessing_is_not_returned(kind: str, tiny_folder: Path, tmp_path: Path):
    """Pairs in random order."""
    trainer = NeuralRewardTrainer(
        kind if kind == "ngrams" else tiny_folder, text_pairs(60, shuffled=True), folder=tmp_path
    )
    with pytest.raises(RewardError, match="may be guessing"):
        asyncio.run(trainer.train())


def _report(**changes: float) -> RewardModelReport:
    fields = {"trained_pairs": 8, "heldout_pairs": 4, "accuracy": 0.75, "low": 0.6, "high": 0.9, "loss": 0.5}
    return RewardModelReport.model_validate({**fields, **changes})


@pytest.fixture(scope="module")
def judge(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformer with one output, untrained."""
    folder = tmp_path_factory.mktemp("judge")
    model = AutoModelForSequenceClassification.from_pretrained(tiny_folder, num_labels=1)
    model.config.pad_token_id = 0
    model.save_pretrained(folder)
    load_tokenizer(tiny_folder).save_pretrained(folder)
    return folder


def test_a_transformer_reward_is_the_sigmoid_of_its_output(judge: Path):
    """σ of the output for the tokens of the whole conversation; the raw output is in the metadata."""
    reward = TransformerReward(model=judge, report=_report(), weight=0.25)
    turns = [*PROMPT, agent("hello", 1)]
    text = reward.tokenizer.apply_chat_template([turn.to_template() for turn in turns], tokenize=False)
    ids = reward.tokenizer(text, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        raw = float(reward.model(input_ids=torch.tensor([ids])).logits[0, 0])
    result = asyncio.run(reward.compute_reward(turns, CONTEXT))
    assert result.metadata == {"raw": pytest.approx(raw, abs=1e-6)}
    assert result.score == pytest.approx(1 / (1 + np.exp(-raw)), abs=1e-6)
    assert (reward.name, reward.weight, reward.model.training, reward.report) == ("neural", 0.25, False, _report())


def test_a_conversation_without_a_reply_has_no_reward(judge: Path):
    """It is unscored."""
    reward = TransformerReward(model=judge, report=_report())
    with pytest.raises(Unscored, match=r"^the conversation has no reply of the agent$"):
        asyncio.run(reward.compute_reward(PROMPT, CONTEXT))


@pytest.mark.parametrize(("low", "taken"), [(0.5, False), (0.51, True)])
def test_an_interval_that_contains_guessing_is_refused_with_its_numbers(judge: Path, low: float, taken: bool):
    """Its lower bound must be above .5."""
    if taken:
        assert TransformerReward(model=judge, report=_report(low=low)).report.low == low
        return
    with pytest.raises(RewardError) as refusal:
        TransformerReward(model=judge, report=_report(low=low))
    assert str(refusal.value) == (
        f"the reward in {judge} may be guessing, because its held-out pair accuracy 0.750, 95 % interval "
        "0.500 to 0.900 is not above 0.5. "
        "Train it on more pairs"
    )


def test_a_model_without_a_chat_template_cannot_read_conversations(judge: Path):
    """The message names the remedy."""
    reward = TransformerReward(model=judge, report=_report())
    reward.tokenizer.chat_template = None
    with pytest.raises(PolicyError) as refusal:
        asyncio.run(reward.compute_reward([*PROMPT, agent("hello", 1)], CONTEXT))
    assert str(refusal.value) == (
        "the tokenizer has no chat template to render a conversation with. Add one to its folder"
    )


def test_a_reward_has_a_temporary_folder_by_default():
    """It exists before the training; pairs and settings are attributes."""
    trainer = NeuralRewardTrainer("ngrams", text_pairs(3))
    assert trainer.folder.is_dir()
    assert trainer.folder.name.startswith("grpo-reward-")
    assert (trainer.model_name, trainer.pairs, trainer.report) == ("ngrams", tuple(text_pairs(3)), None)
    trainer.folder.rmdir()
