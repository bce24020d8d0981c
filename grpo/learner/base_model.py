"""Make a base model: a tokenizer and weights from written conversations."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from grpo import progress
from grpo.config.pretrain import PretrainConfig
from grpo.learner.imitation import imitate
from grpo.messages import Message, Tool
from grpo.policy.transformers.blank import new_model, train_tokenizer
from grpo.renderer import Renderer

_TOKENIZER_CONVERSATIONS = 4000
_SAVE_EVERY = 500
_POOL = 16
"""Batches that are sorted by length together."""


def make_base_model(
    conversations: Sequence[Sequence[Message]], tools: Sequence[Tool], config: PretrainConfig, folder: Path
) -> float:
    """Train tokenizer and model on these conversations and write a model folder; returns the last loss."""
    texts = [m.content or " ".join(map(str, m.tool_calls)) for c in conversations[:_TOKENIZER_CONVERSATIONS] for m in c]
    tokenizer = train_tokenizer(texts, vocabulary=config.vocabulary, phrases=config.phrases)
    renderer = Renderer(tokenizer, tools=tools)
    sequences = [renderer.conversation(conversation)[0] for conversation in conversations]
    model = new_model(
        tokenizer,
        hidden_size=config.hidden_size,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        mlp_size=config.mlp_size,
        seed=config.seed,
    )

    def on_step(step: int, value: float) -> None:
        progress.report("imitate", step + 1, config.steps, loss=value)
        if (step + 1) % _SAVE_EVERY == 0 or step + 1 == config.steps:
            model.save_pretrained(folder, safe_serialization=True)

    tokenizer.save_pretrained(folder)
    return imitate(
        model,
        _batches(sequences, size=config.batch_size, seed=config.seed),
        steps=config.steps,
        learning_rate=config.learning_rate,
        pad_id=int(tokenizer.pad_token_id),
        on_step=on_step,
    )


def _batches(sequences: Sequence[Sequence[int]], *, size: int, seed: int) -> Iterator[list[Sequence[int]]]:
    """Endless batches of similar lengths."""
    rng = random.Random(seed)
    while True:
        pool = sorted(rng.sample(sequences, min(len(sequences), size * _POOL)), key=len)
        batches = [pool[start : start + size] for start in range(0, len(pool), size)]
        rng.shuffle(batches)
        yield from batches
