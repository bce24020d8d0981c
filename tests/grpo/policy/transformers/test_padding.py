from __future__ import annotations

import pytest
import torch

from grpo.errors import DataError
from grpo.policy.transformers.exactness import choose_path
from grpo.policy.transformers.forward.padding import pad, padded_microbatches
from grpo.policy.transformers.forward.passes import hidden_states, microbatches, token_batch
from tests.grpo.policy.transformers.test_packing import CPU, Sequence, make, states_alone
from tests.models.families import tiny_model


def test_each_sequence_has_a_row():
    """Rows of 4: the second is padded with two zeros, its completion token 3 is predicted at 4 + 0."""
    batch = pad([make([9, 8], 1, 2), make([9], 3)], device=CPU)
    assert batch.token_ids.tolist() == [[9, 8, 1, 2], [9, 3, 0, 0]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3]] * 2
    assert batch.predictors.tolist() == [1, 2, 4]
    assert batch.targets.tolist() == [1, 2, 3]
    assert batch.ends.tolist() == [3, 5]
    assert batch.tree is None


def test_microbatches_count_the_padding():
    """Lengths 5, 4 and 1: 2 × 5 fit into 10 tokens, 3 × 5 do not."""
    samples = [make([9], 1), make([9] * 4, 1), make([9] * 3, 1)]
    cut = padded_microbatches(samples, max_tokens=10, equal_lengths=False)
    assert [[len(sample.token_ids) for sample in micro] for micro in cut] == [[5, 4], [2]]
    assert padded_microbatches([], max_tokens=10, equal_lengths=False) == []


def test_rows_of_one_length_are_not_padded():
    """Lengths 3, 2, 3: the two of 3 together."""
    cut = padded_microbatches([make([9, 9], 1), make([9], 1), make([8, 8], 1)], max_tokens=100, equal_lengths=True)
    assert [[len(sample.token_ids) for sample in micro] for micro in cut] == [[3, 3], [2]]


def test_a_model_without_padding_refuses_a_ragged_batch():
    """Microbatches are of one length; a caller that skips them is refused."""
    model = tiny_model("rwkv")
    choose_path(model, "0")
    with pytest.raises(DataError, match="takes sequences of one length"):
        token_batch(model, [make([9, 8], 1), make([9], 1)])
    assert [len(micro) for micro in microbatches(model, [make([9, 8], 1), make([9], 1)], max_tokens=99)] == [1, 1]


def test_a_sequence_that_begins_with_a_completion_token_is_refused():
    """No token before it predicts it."""
    model = tiny_model("llama")
    choose_path(model, "0")
    with pytest.raises(DataError, match="prompt of at least one token"):
        token_batch(model, [make([], 1, 2)])


@pytest.mark.parametrize("family", ["mamba2", "qwen3_next", "bloom"])
def test_each_token_has_the_state_of_its_sequence_alone(family: str):
    """Lengths 6, 3 and 9 in one batch, compared with a forward pass of each."""
    model = tiny_model(family)
    choose_path(model, "0")
    samples: list[Sequence] = [make([9, 8, 7], 1, 2, 3), make([5], 4, 3), make([5, 6, 7, 8, 9, 10], 4, 3, 2)]
    batch = token_batch(model, samples)
    states = hidden_states(model, batch).index_select(0, batch.predictors)
    assert torch.allclose(states, states_alone(model, samples), atol=1e-4)
