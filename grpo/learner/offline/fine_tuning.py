"""Supervised fine-tuning of a checkpoint on demonstrations: the sft stage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from grpo.config.episode_parts import EpisodeParts
from grpo.config.sft import SFTSettings
from grpo.environments.episode_parts import make_parts
from grpo.errors import DataError
from grpo.learner.checkpoints import save_tuned
from grpo.learner.offline.demonstrations import (
    TokenizedDemonstration,
    read_demonstrations,
    source_place,
    with_agent_prompt,
)
from grpo.learner.offline.read_back import check_read_back
from grpo.messages import Message, Tool
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
    tools = (*environment.tools, *agent.tools)
    examples = []
    source = source_place(settings.demonstrations)
    for index, conversation in enumerate(read_demonstrations(settings.demonstrations)):
        messages, place = with_agent_prompt(conversation, agent, environment), f"demonstration {index + 1} of {source}"
        _check_calls(messages, tools, place)
        for position, message in enumerate(messages):
            if message.role == "assistant":
                check_read_back(message, messages[:position], renderer, f"{place}: message {position}")
        ids, mask = renderer.tokenize_conversation(messages)
        if len(ids) > policy.max_context:
            raise DataError(
                f"{place} has {len(ids)} tokens, but the model reads {policy.max_context}. Shorten it or leave it out"
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


def _check_calls(messages: Sequence[Message], tools: Sequence[Tool], place: str) -> None:
    """Refuse calls of undeclared tools, unless none is declared: some environments state tools in each scenario."""
    unknown = {call.name for message in messages for call in message.tool_calls} - {tool.name for tool in tools}
    if tools and unknown:
        raise DataError(
            f"{place} calls {', '.join(sorted(unknown))}, which the prompt does not declare. Its tools are "
            f"{', '.join(tool.name for tool in tools)}: correct the call, or leave the demonstration out"
        )
