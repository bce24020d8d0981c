from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel
from transformers.masking_utils import causal_mask_function

from grpo.policy.transformers import attention
from grpo.policy.transformers.attention import MaskRule
from grpo.policy.transformers.forward import hidden_states, token_batch
from grpo.policy.transformers.model import load
from grpo.policy.transformers.packing import pack, packed_microbatches

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Sequence:
    token_ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]


def make(prompt: list[int], *completion: int) -> Sequence:
    """A prompt and its completion."""
    ids = np.array([*prompt, *completion], dtype=np.int32)
    return Sequence(token_ids=ids, loss_mask=np.arange(len(ids)) >= len(prompt))


def states_alone(model: PreTrainedModel, samples: list[Sequence]) -> torch.Tensor:
    """State before each loss token by a plain forward pass of each sequence, [loss tokens, hidden size]."""
    states = []
    for sample in samples:
        ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
        states.append(hidden[np.flatnonzero(sample.loss_mask) - 1])
    return torch.cat(states)


def test_shared_prefixes_are_in_the_row_once():
    """Prompts [9 8 7] and [9 8 6 5]: root [9 8], remainders [7] and [6 5], then the completions."""
    packed = pack([make([9, 8, 7], 1, 2), make([9, 8, 7], 3), make([9, 8, 6, 5], 4)], device=CPU)
    assert packed.token_ids.tolist() == [[9, 8, 7, 6, 5, 1, 2, 3, 4]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 2, 3, 3, 4, 3, 4]]
    assert packed.predictors.tolist() == [2, 5, 2, 4]  # 1 and 3 after the 7, 2 after the 1, 4 after the 5
    assert packed.targets.tolist() == [1, 2, 3, 4]


def test_a_segment_attends_to_its_ancestors_and_its_own_past_alone():
    """The set of attended positions of each token."""
    packed = pack([make([9, 8, 7], 1, 2), make([9, 8, 7], 3), make([9, 8, 6, 5], 4)], device=CPU)
    sees: dict[int, set[int]] = {}
    assert packed.tree is not None
    for block in packed.tree.blocks:
        for row in range(len(block.queries)):
            mask = block.mask(MaskRule(causal_mask_function), torch.float32)[row, 0]
            for column, token in enumerate(block.queries[row].tolist()):
                allowed = block.keys[row][mask[column] == 0].tolist()
                sees[token] = set(allowed)
    root = {0, 1}
    assert sees == {
        0: {0}, 1: root, 2: root | {2}, 3: root | {3}, 4: root | {3, 4},
        5: root | {2, 5}, 6: root | {2, 5, 6}, 7: root | {2, 7}, 8: root | {3, 4, 8},
    }  # fmt: skip


@pytest.mark.parametrize("chunk", [256, 3])
@pytest.mark.parametrize(
    "samples",
    [
        [make([9], 1, 2, 3)],
        [make([9, 8], 1), make([7, 6], 2, 3)],  # nothing in common
        [make([9, 8], 1, 2), make([9, 8], 1, 3), make([9, 8], 2)],  # one prompt
        [
            make([9], 1, 2),
            make([9, 8], 2, 5, 4, 3, 2, 7, 6, 5),
            make([9, 8, 8], 2),
            make([9, 8], 4),
        ],  # prompt in prompt
    ],
)
def test_each_token_has_the_state_of_an_unpacked_sequence(
    tiny_folder: Path, samples: list[Sequence], chunk: int, monkeypatch: pytest.MonkeyPatch
):
    """Compared with plain forward passes, one a sequence; with three queries in a call, segments need up to four."""
    monkeypatch.setattr(attention, "_CHUNK", chunk)
    model = load(tiny_folder).model
    packed = token_batch(model, samples)
    states = hidden_states(model, packed).index_select(0, packed.predictors)
    assert torch.allclose(states, states_alone(model, samples), atol=1e-6)


def test_microbatches_count_shared_prefixes_once():
    """Prompt of 3 and completions of 2 for three samples: 3 + 2 + 2 fit into 7 tokens, the third does not."""
    siblings = [make([9, 8, 7], 1, k) for k in range(3)]
    cut = packed_microbatches(siblings, max_tokens=7)
    assert [len(micro) for micro in cut] == [2, 1]
    assert [pack(micro, device=CPU).token_ids.shape[1] for micro in cut] == [7, 5]


def test_the_count_is_that_of_the_packed_row():
    """Three prompts that begin with the same token: 1 + 4 + 4 + 1 and 3 completion tokens are 13, more than 12."""
    samples = [make([9, 1, 1, 1, 1], 1), make([9, 1, 1, 1, 2], 1), make([9, 5], 1)]
    for budget in (6, 9, 10, 12, 13):
        for micro in packed_microbatches(samples, max_tokens=budget):
            assert len(micro) == 1 or pack(micro, device=CPU).token_ids.shape[1] <= budget
    assert [len(m) for m in packed_microbatches(samples, max_tokens=13)] == [3]
    assert [len(m) for m in packed_microbatches(samples, max_tokens=12)] == [2, 1]


def test_many_samples_of_a_long_prompt_are_split():
    """40 completions of 1 token on a prompt of 20: 60 in a row, but 840 keys, of which a row of 60 may have 240."""
    cut = packed_microbatches([make([9] * 20, k % 5) for k in range(40)], max_tokens=60)
    assert [len(micro) for micro in cut] == [11, 11, 11, 7]


def test_an_empty_batch_has_no_rows():
    """No samples make no microbatches."""
    assert packed_microbatches([], max_tokens=10) == []


def test_groups_stay_together_in_any_order():
    """Two prompts that begin alike: 3 + 1 and 3 + 1, the second prompt's first two tokens shared: 4 + 1 + 2."""
    a, b = [make([9, 8, 7], k) for k in range(2)], [make([9, 8, 6], k) for k in range(2)]
    cut = packed_microbatches([a[0], b[0], a[1], b[1]], max_tokens=100)
    assert len(cut) == 1
    assert pack(cut[0], device=CPU).token_ids.shape[1] == 2 + 1 + 1 + 4
    assert [m.token_ids[2] for m in cut[0]] in ([7, 7, 6, 6], [6, 6, 7, 7])
    assert [len(m) for m in packed_microbatches([a[0], b[0], a[1], b[1]], max_tokens=5)] == [2, 2]


def test_a_sequence_longer_than_the_budget_is_a_row_of_its_own():
    """It cannot be split."""
    assert [len(m) for m in packed_microbatches([make([9] * 8, 1), make([7], 2)], max_tokens=4)] == [1, 1]
