"""Make a base model: a tokenizer and weights from written conversations."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from grpo import progress
from grpo.config.pretrain import PretrainConfig
from grpo.learner.imitation import Written, imitate
from grpo.messages import Message, Tool
from grpo.policy.transformers.blank import new_model, train_tokenizer
from grpo.policy.transformers.model import TransformersPolicy
from grpo.renderer import Renderer

_TOKENIZER_CONVERSATIONS = 4000
_SAVE_EVERY = 500


def make_base_model(
    conversations: Sequence[Sequence[Message]], tools: Sequence[Tool], config: PretrainConfig, folder: Path
) -> float:
    """Train tokenizer and model on these conversations and write a model folder; returns the last loss."""
    texts = [m.content or " ".join(map(str, m.tool_calls)) for c in conversations[:_TOKENIZER_CONVERSATIONS] for m in c]
    tokenizer = train_tokenizer(texts, vocabulary=config.vocabulary, phrases=config.phrases)
    renderer = Renderer(tokenizer, tools=tools)
    policy = TransformersPolicy(
        new_model(
            tokenizer,
            hidden_size=config.hidden_size,
            layers=config.layers,
            heads=config.heads,
            kv_heads=config.kv_heads,
            mlp_size=config.mlp_size,
            seed=config.seed,
        ),
        tokenizer,
    )

    batches = _batches(conversations, renderer, size=config.batch_size, seed=config.seed)
    done, loss = 0, math.nan
    for steps in config.cycles:

        def on_step(step: int, value: float, before: int = done) -> None:
            progress.report("imitate", before + step + 1, sum(config.cycles), loss=value)
            if (before + step + 1) % _SAVE_EVERY == 0:
                policy.save(folder)

        loss = imitate(policy.model, batches, steps=steps, learning_rate=config.learning_rate, on_step=on_step)
        done += steps
    policy.save(folder)
    return loss


def _batches(
    conversations: Sequence[Sequence[Message]], renderer: Renderer, *, size: int, seed: int
) -> Iterator[list[Written]]:
    """Endless batches of conversations, shuffled anew whenever all have been seen.

    All that follows the system prompt is learned, the customers' and the tools' words as well: copying numbers is
    learned from all of them.
    """
    rng, size = random.Random(seed), min(size, len(conversations))
    while True:
        order = rng.sample(range(len(conversations)), len(conversations))
        for start in range(0, len(order) - size + 1, size):
            yield [_written(conversations[index], renderer) for index in order[start : start + size]]


def _written(conversation: Sequence[Message], renderer: Renderer) -> Written:
    ids, _ = renderer.conversation(conversation)
    prompt = len(renderer.start(conversation[:1])) - 1  # without the place where the agent would speak
    return Written(token_ids=np.array(ids, dtype=np.int32), loss_mask=np.arange(len(ids)) >= prompt)
