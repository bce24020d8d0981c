"""Reward models trained on preference pairs (Bradley–Terry), by TRL's RewardTrainer or on hashed n-grams.

`await NeuralRewardTrainer(model_name, preference_data).train()`
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import RewardTrainer

from grpo.errors import DataError, PolicyError, RewardError, Unscored
from grpo.learner.trl.dpo_trainer import TokenizedPair
from grpo.learner.trl.loop import WithoutTelemetry, rows_per_pass, run_trainer, training_arguments
from grpo.messages import Message
from grpo.policy.tokenizer import load_tokenizer
from grpo.policy.transformers.device import reproducible_kernels
from grpo.policy.transformers.forward.packing import common_prefix_length
from grpo.rewards.learned.metrics import wilson_interval
from grpo.rewards.learned.model_card import ModelCard
from grpo.rewards.learned.neural import NeuralReward
from grpo.rewards.learned.training import held_out_mask, train_on_pairs
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult
from grpo.scenarios.reward_data import PreferencePair

NGRAMS = "ngrams"


class RewardModelReport(BaseModel):
    """Pair accuracy of a reward model on held-out scenarios."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trained_pairs: int
    heldout_pairs: int
    accuracy: float
    """Share of held-out pairs in which the chosen side has the higher reward."""
    low: float
    """Bounds of the accuracy's 95 % interval."""
    high: float
    loss: float
    """−log σ(r_chosen − r_rejected) of the last training step; guessing gives ln 2."""


@reproducible_kernels()
def train_reward_model(
    pairs: Sequence[TokenizedPair],
    base: Path,
    target: Path,
    *,
    learning_rate: float = 1e-4,
    epochs: int = 1,
    pairs_per_step: int = 32,
    max_tokens: int = 16384,
    validation_fraction: float = 0.2,
    seed: int = 0,
) -> RewardModelReport:
    """Train the model in `base` with a head of one output, and write it to `target` as safetensors.

    The loss is −log σ(r(prompt, chosen) − r(prompt, rejected)) (Bradley–Terry 1952), with r read at the last token. A
    `validation_fraction` of the scenarios, not of the pairs, is drawn by `seed` and held out. Raises `DataError` if the
    training or the held-out pairs are empty, and `PolicyError` if `base` has no safetensors weights.
    """
    trained, heldout = _hold_out(pairs, fraction=validation_fraction, seed=seed)
    tokenizer = load_tokenizer(base)
    if not any(base.glob("*.safetensors")):
        raise PolicyError(f"no *.safetensors in {base}. Pickled weights are refused: convert them to safetensors")
    per_step = min(pairs_per_step, len(trained))
    width = max(len(p.prompt_ids) + max(len(p.chosen_ids), len(p.rejected_ids)) for p in trained)
    per_pass = rows_per_pass(per_step, width=2 * width, max_tokens=max_tokens)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with TemporaryDirectory() as folder:
        trainer = _RewardTrainer(
            model=str(base),
            args=RewardConfig(
                **training_arguments(folder, device, seed=seed),
                num_train_epochs=epochs,
                per_device_train_batch_size=per_pass,
                gradient_accumulation_steps=per_step // per_pass,
                learning_rate=learning_rate,
                lr_scheduler_type="constant",
                max_length=None,
                model_init_kwargs={"use_safetensors": True, "local_files_only": True},
            ),
            train_dataset=Dataset.from_list(
                [{"chosen_ids": _chosen(pair).tolist(), "rejected_ids": _rejected(pair).tolist()} for pair in trained]
            ),
            processing_class=tokenizer,
        )
        logged = run_trainer(trainer)
    model = trainer.model.eval()
    correct = sum(predict_reward(model, _chosen(pair)) > predict_reward(model, _rejected(pair)) for pair in heldout)
    model.save_pretrained(target, safe_serialization=True)
    tokenizer.save_pretrained(target)
    low, high = wilson_interval(correct, len(heldout))
    return RewardModelReport(
        trained_pairs=len(trained),
        heldout_pairs=len(heldout),
        accuracy=correct / len(heldout),
        low=low,
        high=high,
        loss=logged[-1]["loss"],
    )


@torch.no_grad()
def predict_reward(model: PreTrainedModel, token_ids: NDArray[np.int32]) -> float:
    """Output of a reward model for a conversation [tokens]."""
    ids = torch.from_numpy(token_ids.astype(np.int64))[None].to(model.device)
    return float(model(input_ids=ids, use_cache=False).logits[0, 0])


def _hold_out(
    pairs: Sequence[TokenizedPair], *, fraction: float, seed: int
) -> tuple[list[TokenizedPair], list[TokenizedPair]]:
    """Split pairs into training and held-out pairs that share no scenario."""
    scenarios = sorted({pair.scenario_id for pair in pairs})
    count = round(fraction * len(scenarios))
    if not 0 < count < len(scenarios):
        raise DataError(
            f"validation_fraction {fraction:g} of {len(scenarios)} scenarios leaves {len(scenarios) - count} for "
            f"training and {count} held out. Both must be at least 1: add preferences of other scenarios"
        )
    order = np.random.default_rng(seed).permutation(len(scenarios))
    held_out = {scenarios[index] for index in order[:count]}
    trained = [pair for pair in pairs if pair.scenario_id not in held_out]
    return trained, [pair for pair in pairs if pair.scenario_id in held_out]


def _chosen(pair: TokenizedPair) -> NDArray[np.int32]:
    return np.concatenate([pair.prompt_ids, pair.chosen_ids])


def _rejected(pair: TokenizedPair) -> NDArray[np.int32]:
    return np.concatenate([pair.prompt_ids, pair.rejected_ids])


class _RewardTrainer(WithoutTelemetry, RewardTrainer):
    """TRL's RewardTrainer without telemetry."""


class TransformerReward(RewardFunction):
    """Sigmoid of the output of a reward model in a folder that `train_reward_model` wrote.

    Raises `RewardError` if the lower bound of the held-out accuracy's interval is not above 0.5.
    """

    name = "neural"

    def __init__(self, *, model: Path, report: RewardModelReport, weight: float = 1.0) -> None:
        super().__init__(weight=weight)
        if report.low <= 0.5:
            raise RewardError(
                f"the reward in {model} may be guessing, because its held-out pair accuracy {report.accuracy:.3f}, 95 "
                f"% interval {report.low:.3f} to {report.high:.3f} is not above 0.5. Train it on more pairs"
            )
        self.report = report
        self.tokenizer = load_tokenizer(model)
        self.model = AutoModelForSequenceClassification.from_pretrained(
            model, use_safetensors=True, local_files_only=True, dtype=torch.float32
        ).eval()

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Score the whole conversation. Raises `Unscored` if it has no reply."""
        if not any(turn.role == "assistant" for turn in turns):
            raise Unscored("the conversation has no reply of the agent")
        raw = predict_reward(self.model, _tokens(self.tokenizer, turns))
        return RewardResult(score=float(1 / (1 + np.exp(-raw))), metadata={"raw": raw})


class NeuralRewardTrainer:
    """Bradley–Terry training on preference pairs. A fifth of them, in whole groups, is held out.

    `model_name` is the folder of a transformer, which is trained further, or "ngrams" for a small network over hashed
    n-grams, which is trained from scratch. After training, `report` holds the held-out pair accuracy with its interval,
    and `folder` holds the reward.
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
        self.report: ModelCard | RewardModelReport | None = None

    async def train(self) -> NeuralReward | TransformerReward:
        """Train and evaluate in a thread, and return the reward.

        Raises `RewardError` if the reward may be guessing, and `DataError` if nothing can be held out.
        """
        return await asyncio.to_thread(self._train_ngrams if self.model_name == NGRAMS else self._train_transformer)

    def _train_ngrams(self) -> NeuralReward:
        mask = held_out_mask([pair.group for pair in self.pairs])
        trained = [pair for pair, held_out in zip(self.pairs, mask, strict=True) if not held_out]
        heldout = [pair for pair, held_out in zip(self.pairs, mask, strict=True) if held_out]
        self.report = train_on_pairs(trained, heldout, self.folder, split="a fifth by group", seed=self.seed)
        return NeuralReward(model=self.folder)

    def _train_transformer(self) -> TransformerReward:
        base = Path(self.model_name)
        tokenizer = load_tokenizer(base)
        self.report = train_reward_model(
            [_tokenize_pair(tokenizer, pair) for pair in self.pairs],
            base,
            self.folder,
            learning_rate=self.learning_rate,
            epochs=self.epochs,
            seed=self.seed,
        )
        return TransformerReward(model=self.folder, report=self.report)


def _tokenize_pair(tokenizer: PreTrainedTokenizerBase, pair: PreferencePair) -> TokenizedPair:
    """Tokenize a pair. Its prompt is the common prefix of both sides."""
    chosen, rejected = (_tokens(tokenizer, [*pair.prompt, reply]) for reply in (pair.chosen, pair.rejected))
    start = min(common_prefix_length([chosen, rejected]), len(chosen) - 1, len(rejected) - 1)
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
        raise PolicyError("the tokenizer has no chat template to render a conversation with. Add one to its folder")
    text = tokenizer.apply_chat_template([message.to_template() for message in messages], tokenize=False)
    return np.array(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int32)
