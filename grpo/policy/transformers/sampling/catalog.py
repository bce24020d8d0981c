"""Choice of a model's sampler by its forward path."""

from __future__ import annotations

from collections.abc import Collection

from transformers import PreTrainedModel

from grpo.policy.transformers.forward.passes import forward_path
from grpo.policy.transformers.sampling.base import TurnSampler
from grpo.policy.transformers.sampling.padded_sampler import PaddedSampler
from grpo.policy.transformers.sampling.serving_sampler import ServingSampler
from grpo.policy.transformers.sampling.slot_sampler import MIN_SHARED_PREFIX, SlotSampler


def make_sampler(
    model: PreTrainedModel,
    *,
    stop_ids: Collection[int],
    concurrency: int,
    max_context: int,
    min_shared_prefix: int = MIN_SHARED_PREFIX,
    policy_hash: str = "",
) -> TurnSampler:
    """Make the sampler for the model's forward path. Only flat attention uses `min_shared_prefix`."""
    path = forward_path(model)
    if path == "flat":
        return SlotSampler(
            model,
            stop_ids=stop_ids,
            concurrency=concurrency,
            max_context=max_context,
            min_shared_prefix=min_shared_prefix,
            policy_hash=policy_hash,
        )
    return PaddedSampler(
        model,
        stop_ids=stop_ids,
        concurrency=concurrency,
        max_context=max_context,
        path=path,
        policy_hash=policy_hash,
    )


def make_serving_sampler(
    model: PreTrainedModel,
    *,
    stop_ids: Collection[int],
    concurrency: int,
    max_context: int,
    prefill_chunk: int,
    prefix_cache_bytes: int,
) -> ServingSampler | PaddedSampler:
    """Make the sampler for the model's forward path if turns may come at any time.

    Only flat attention reads prompts in chunks and keeps prefixes.
    """
    path = forward_path(model)
    if path != "flat":
        return PaddedSampler(model, stop_ids=stop_ids, concurrency=concurrency, max_context=max_context, path=path)
    return ServingSampler(
        model,
        stop_ids=stop_ids,
        concurrency=concurrency,
        max_context=max_context,
        prefill_chunk=prefill_chunk,
        prefix_cache_bytes=prefix_cache_bytes,
    )
