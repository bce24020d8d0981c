"""From people's preferences to a reward: `await NeuralRewardTrainer(model_name, preference_data).train()`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from grpo.errors import PolicyError, RewardError, Unscored
from grpo.learner.trl.dpo_trainer import TokenizedPair
from grpo.learner.trl.reward_model import RewardModelReport, reward, train_reward_model
from grpo.messages import Message
from grpo.policy.transformers.model import load_tokenizer
from grpo.rewards.learned.model_card import ModelCard
from grpo.rewards.learned.neural import NeuralReward
from grpo.rewards.learned.training import held_out_mask, train_on_pairs
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult
from grpo.scenarios.reward_data import PreferencePair

NGRAMS = "ngrams"


class TransformerReward(RewardFunction):
    """σ of what a transformer with one output gives a conversation; the folder is one of `train_reward_model`.

    Raises `RewardError` when the held-out accuracy's interval holds guessing.
    """

    name = "neural"

    def __init__(self, *, model: Path, report: RewardModelReport, weight: float = 1.0) -> None:
        super().__init__(weight=weight)
        if report.low <= 0.5:
            raise RewardError(
                f"the reward in {model} may be guessing: held-out pair accuracy {report.accuracy:.3f}, 95 % interval "
                f"{report.low:.3f} to {report.high:.3f} holds 0.5; train it on more pairs"
            )
        self.report = report
        self.tokenizer = load_tokenizer(model)
        self.model = AutoModelForSequenceClassification.from_pretrained(
            model, use_safetensors=True, local_files_only=True, dtype=torch.float32
        ).eval()

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """See the class; a conversation without a reply cannot be judged."""
        if not any(turn.role == "assistant" for turn in turns):
            raise Unscored("the agent said nothing")
        raw = reward(self.model, _tokens(self.tokenizer, turns))
        return RewardResult(score=float(1 / (1 + np.exp(-raw))), metadata={"raw": raw})


class NeuralRewardTrainer:
    """Bradley–Terry on preference pairs, a fifth of them, whole groups, held out.

    `model_name` is the folder of a transformer, whose weights are trained on, or "ngrams": a small network over hashed
    words, from scratch. After training `measured` holds the held-out pair accuracy with its interval, and `folder` the
    reward.
    """

    def __init__(
        self,
        model_name: str | Path,
        preference_data: Sequence[PreferencePair],
        *,
        folder: Path | None = None,
        learning_rate: float = 1e-4,
        epochs: int = 1,
        seed: int = 0,
    ) -> None:
        self.model_name = str(model_name)
        self.pairs = tuple(preference_data)
        self.folder = folder or Path(mkdtemp(prefix="grpo-reward-"))
        self.learning_rate = learning_rate
        self.epochs = epochs
        self.seed = seed
        self.measured: ModelCard | RewardModelReport | None = None

    async def train(self) -> NeuralReward | TransformerReward:
        """Train, measure, and return the reward; it runs beside the event loop.

        Raises `RewardError` for a reward that may be guessing, `DataError` when nothing can be held out.
        """
        return await asyncio.to_thread(self._small if self.model_name == NGRAMS else self._transformer)

    def _small(self) -> NeuralReward:
        held = held_out_mask([pair.group for pair in self.pairs])
        trained = [pair for pair, out in zip(self.pairs, held, strict=True) if not out]
        heldout = [pair for pair, out in zip(self.pairs, held, strict=True) if out]
        self.measured = train_on_pairs(trained, heldout, self.folder, split="a fifth by group", seed=self.seed)
        return NeuralReward(model=self.folder)

    def _transformer(self) -> TransformerReward:
        base = Path(self.model_name)
        tokenizer = load_tokenizer(base)
        self.measured = train_reward_model(
            [_preference(tokenizer, pair) for pair in self.pairs],
            base,
            self.folder,
            learning_rate=self.learning_rate,
            epochs=self.epochs,
            seed=self.seed,
        )
        return TransformerReward(model=self.folder, report=self.measured)


def _preference(tokenizer: PreTrainedTokenizerBase, pair: PreferencePair) -> TokenizedPair:
    """A pair in tokens: what both sides share is the prompt."""
    chosen, rejected = (_tokens(tokenizer, [*pair.prompt, reply]) for reply in (pair.chosen, pair.rejected))
    width = min(len(chosen), len(rejected))
    same = chosen[:width] == rejected[:width]
    start = width - 1 if same.all() else int(same.argmin())
    return TokenizedPair(
        prompt_ids=chosen[:start],
        chosen_ids=chosen[start:],
        chosen_mask=np.ones(len(chosen) - start, dtype=np.bool_),
        rejected_ids=rejected[start:],
        rejected_mask=np.ones(len(rejected) - start, dtype=np.bool_),
        scenario_id=pair.group,
    )


def _tokens(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    if tokenizer.chat_template is None:
        raise PolicyError(
            "the tokenizer has no chat template, so a conversation cannot be laid out; add one to its folder"
        )
    text = tokenizer.apply_chat_template([message.to_template() for message in messages], tokenize=False)
    return np.array(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int32)
