"""DPO of a checkpoint on preference pairs: the dpo stage."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from grpo.agents.catalog import make_agent
from grpo.config.dpo import DPOSettings, PreferenceSettings
from grpo.config.episode_parts import EpisodeParts
from grpo.environments.catalog import make_environment
from grpo.learner.checkpoints import save_tuned
from grpo.learner.metrics import PreferenceMetrics
from grpo.learner.offline.preferences import PairRenderers, pair_logprobs, preference_metrics, read_pairs, tokenize_pair
from grpo.policy.transformers.device import reproducible_kernels
from grpo.policy.transformers.model import TransformersPolicy, load

if TYPE_CHECKING:
    from grpo.learner.trl.dpo_trainer import TokenizedPair


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceTuning:
    """Result of DPO on a file of pairs."""

    policy: str
    """Hash of the trained weights."""
    pairs: int
    losses: tuple[float, ...]
    """Loss of each optimizer step, nats per pair."""
    before: PreferenceMetrics
    after: PreferenceMetrics
    """Metrics on the pairs that were trained on."""


@reproducible_kernels()
def tune_on_preferences(
    base: Path,
    target: Path,
    settings: DPOSettings,
    *,
    parts: EpisodeParts,
    max_tokens: int,
    seed: int,
) -> PreferenceTuning:
    """Train checkpoint `base`, which is the reference policy, on preference pairs, and write `target`.

    The prompts of the pairs are rendered as in these episodes, with the tools of a pair if it states its own.

    Raises `DataError` if pairs cannot be read or exceed the model's context, and `NoEffect` if no weight changed.
    """
    policy, written = load(base), read_pairs(settings.pairs)
    environment, agent = make_environment(parts.environment), make_agent(parts.agent)
    renderers = PairRenderers(agent, environment, policy.tokenizer, parts.renderer)
    pairs = [tokenize_pair(*renderers.prepared(pair), max_context=policy.max_context) for pair in written]
    steps, before, after = optimize(policy, pairs, settings, max_tokens=max_tokens, seed=seed)
    tuned = save_tuned(policy, base, target, stage="dpo")
    losses = tuple(step["loss"] for step in steps)
    return PreferenceTuning(policy=tuned, pairs=len(pairs), losses=losses, before=before, after=after)


def optimize(
    policy: TransformersPolicy,
    pairs: Sequence[TokenizedPair],
    settings: PreferenceSettings,
    *,
    max_tokens: int,
    seed: int,
) -> tuple[list[dict[str, float]], PreferenceMetrics, PreferenceMetrics]:
    """Train a policy in place with a copy of itself as the reference.

    Returns the metrics of each step, like `train_dpo`, and the metrics of all pairs before and after. AdamW runs
    without weight decay, and its learning rate falls linearly to 0.
    """
    from grpo.learner.trl.dpo_trainer import train_dpo  # the import takes 2.5 s

    reference = copy.deepcopy(policy.model)
    reference_logprobs = pair_logprobs(reference, pairs, max_tokens=max_tokens)
    per_step = min(settings.pairs_per_step, len(pairs))
    count = settings.epochs * math.ceil(len(pairs) / per_step)
    steps = train_dpo(
        policy.model,
        policy.tokenizer,
        pairs,
        reference=reference,
        optimizer=torch.optim.AdamW(policy.model.parameters(), weight_decay=0.0),
        learning_rate=lambda step: settings.learning_rate * (1 - step / count),
        beta=settings.beta,
        epochs=settings.epochs,
        pairs_per_step=per_step,
        max_tokens=max_tokens,
        seed=seed,
    )
    logprobs = pair_logprobs(policy.model, pairs, max_tokens=max_tokens)
    before = preference_metrics(reference_logprobs, reference_logprobs, beta=settings.beta)
    after = preference_metrics(logprobs, reference_logprobs, beta=settings.beta)
    return steps, before, after
