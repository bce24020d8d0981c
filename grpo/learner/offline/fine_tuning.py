"""Supervised fine-tuning of a checkpoint on demonstrations: the sft stage."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from grpo.config.episode_parts import EpisodeParts
from grpo.config.sft import SFTSettings
from grpo.environments.episode_parts import make_parts
from grpo.learner.checkpoints import save_tuned
from grpo.learner.offline.demonstrations import (
    TokenizedDemonstration,
    demonstration_tokens,
    read_demonstrations,
    source_place,
)
from grpo.policy.transformers.device import reproducible_kernels
from grpo.policy.transformers.model import load


@reproducible_kernels()
def fine_tune(
    base: Path,
    target: Path,
    settings: SFTSettings,
    *,
    parts: EpisodeParts,
    max_tokens: int,
    seed: int,
) -> tuple[str, int, tuple[float, ...]]:
    """Fine-tune checkpoint `base` on conversations in the prompts of these episodes, and write `target`.

    Returns the policy's hash, the number of demonstrations, and the loss of each step. Raises `DataError` if a
    demonstration cannot be read, exceeds the model's context, calls a tool that neither environment nor agent has, or
    does not read back as it was written, and `NoEffect` if no weight changed.
    """
    from grpo.learner.trl.sft_trainer import train_sft  # the import takes 2.5 s

    policy = load(base)
    environment, agent, renderer = make_parts(parts, policy.tokenizer)
    examples = []
    source = source_place(settings.demonstrations)
    for index, conversation in enumerate(read_demonstrations(settings.demonstrations)):
        ids, mask = demonstration_tokens(
            conversation,
            agent=agent,
            environment=environment,
            renderer=renderer,
            max_context=policy.max_context,
            place=f"demonstration {index + 1} of {source}",
        )
        examples.append(TokenizedDemonstration(token_ids=np.array(ids, np.int32), loss_mask=np.array(mask, np.bool_)))
    losses = train_sft(
        policy.model,
        policy.tokenizer,
        examples,
        learning_rate=settings.learning_rate,
        epochs=settings.epochs,
        conversations_per_step=settings.conversations_per_step,
        max_tokens=max_tokens,
        seed=seed,
    )
    return save_tuned(policy, base, target, stage="sft"), len(examples), tuple(losses)
