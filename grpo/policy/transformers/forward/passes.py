"""Forward passes over token sequences: flat with shared prefixes if the model's attention allows it, else padded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import torch
from transformers import PreTrainedModel

from grpo.errors import DataError, PolicyError
from grpo.policy.transformers.forward.head import base_model
from grpo.policy.transformers.forward.packing import pack, packed_microbatches
from grpo.policy.transformers.forward.padding import pad, padded_microbatches
from grpo.policy.transformers.forward.token_batch import MaskedSequence, TokenBatch

S = TypeVar("S", bound=MaskedSequence)


ForwardPath = Literal["flat", "padded", "unpadded", "uncached"]
"""Layout of the sequences of a forward pass: one row with shared prefixes, rows with padding, or rows of equal lengths.
`uncached` has rows of equal lengths, and also samples without a KV cache."""
_EQUAL_LENGTHS = ("unpadded", "uncached")


def forward_path(model: PreTrainedModel) -> ForwardPath:
    """Forward path that was chosen for this model.

    Raises `PolicyError` if the model was never compared with its plain forward pass.
    """
    path: ForwardPath | None = getattr(model, "forward_path", None)
    if path is None:
        raise PolicyError(f"{type(model).__name__} has no forward path yet. Wrap it in a TransformersPolicy first")
    return path


def takes_equal_lengths(model: PreTrainedModel) -> bool:
    """True if the model's forward passes take only sequences of one length."""
    return forward_path(model) in _EQUAL_LENGTHS


def token_batch(model: PreTrainedModel, samples: Sequence[MaskedSequence]) -> TokenBatch:
    """Lay out samples for one forward pass of this model.

    Raises `DataError` if a sequence begins with a loss token, because no token before it predicts it, or if lengths
    differ although the model takes only equal ones.
    """
    if any(sample.loss_mask[0] for sample in samples):
        raise DataError("a sequence begins with a completion token. A prompt of at least one token must precede it")
    if takes_equal_lengths(model) and len({len(sample.token_ids) for sample in samples}) > 1:
        raise DataError("a forward pass without padding takes sequences of one length. Split them into microbatches")
    return (pack if forward_path(model) == "flat" else pad)(samples, device=model.device)


def microbatches(model: PreTrainedModel, samples: Sequence[S], *, max_tokens: int) -> list[list[S]]:
    """Split a batch into passes of up to `max_tokens` tokens as laid out by `token_batch`. The order may change."""
    if forward_path(model) == "flat":
        return packed_microbatches(samples, max_tokens=max_tokens)
    return padded_microbatches(samples, max_tokens=max_tokens, equal_lengths=takes_equal_lengths(model))


def hidden_states(model: PreTrainedModel, batch: TokenBatch) -> torch.Tensor:
    """The state after each token of the batch, [rows × tokens, hidden size].

    Select from it with `index_select`. Samples share states, and the gradient of plain indexing would add in any order.
    """
    layout = {}
    if batch.tree is not None:
        mask = torch.ones_like(batch.token_ids, dtype=torch.bool)
        layout = {"position_ids": batch.position_ids, "attention_mask": mask, "tree": batch.tree}
    outputs = base_model(model)(input_ids=batch.token_ids, use_cache=False, **layout)
    states: torch.Tensor = outputs.last_hidden_state
    return states.flatten(0, 1)


def is_out_of_memory(error: Exception) -> bool:
    """True for an out-of-memory error. On the CPU only its message shows that, because PyTorch has no class for it."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
