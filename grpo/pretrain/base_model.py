"""Base model from demonstrations: a tokenizer, and weights trained by SFT."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from grpo import progress
from grpo.config.pretrain import PretrainConfig
from grpo.learner.offline.demonstrations import TokenizedDemonstration
from grpo.messages import Message, Tool
from grpo.policy.transformers.model import TransformersPolicy
from grpo.pretrain.init_model import init_model, train_tokenizer
from grpo.pretrain.sft import train_sft
from grpo.renderers.chat_template import Renderer

_TOKENIZER_CONVERSATIONS = 4000
_SAVE_EVERY = 500


def make_base_model(
    conversations: Sequence[Sequence[Message]], tools: Sequence[Tool], config: PretrainConfig, folder: Path
) -> float:
    """Train tokenizer and model on these demonstrations, and write a model folder; returns the last loss."""
    texts = [m.content or " ".join(map(str, m.tool_calls)) for c in conversations[:_TOKENIZER_CONVERSATIONS] for m in c]
    tokenizer = train_tokenizer(texts, vocabulary=config.vocab_size, phrases=config.phrases)
    renderer = Renderer(tokenizer, tools=tools)
    policy = TransformersPolicy(
        init_model(
            tokenizer,
            hidden_size=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            mlp_size=config.intermediate_size,
            seed=config.seed,
        ),
        tokenizer,
    )

    batches = _batches(conversations, renderer, size=config.batch_size, seed=config.seed)
    done, loss = 0, math.nan
    for steps in config.cycle_steps:

        def on_step(step: int, value: float, before: int = done) -> None:
            progress.report("sft", before + step + 1, sum(config.cycle_steps), loss=value)
            if (before + step + 1) % _SAVE_EVERY == 0:
                policy.save(folder)

        loss = train_sft(policy.model, batches, steps=steps, learning_rate=config.learning_rate, on_step=on_step)
        done += steps
    policy.save(folder)
    return loss


def _batches(
    conversations: Sequence[Sequence[Message]], renderer: Renderer, *, size: int, seed: int
) -> Iterator[list[TokenizedDemonstration]]:
    """Endless batches of demonstrations, shuffled in each epoch.

    The loss is on everything after the system prompt, also on user and tool messages: the model learns to copy numbers
    from all of them.
    """
    rng, size = random.Random(seed), min(size, len(conversations))
    while True:
        order = rng.sample(range(len(conversations)), len(conversations))
        for start in range(0, len(order) - size + 1, size):
            yield [_tokenize(conversations[index], renderer) for index in order[start : start + size]]


def _tokenize(conversation: Sequence[Message], renderer: Renderer) -> TokenizedDemonstration:
    ids, _ = renderer.tokenize_conversation(conversation)
    prompt = len(renderer.build_prompt(conversation[:1])) - 1  # without the generation prompt
    return TokenizedDemonstration(token_ids=np.array(ids, dtype=np.int32), loss_mask=np.arange(len(ids)) >= prompt)
