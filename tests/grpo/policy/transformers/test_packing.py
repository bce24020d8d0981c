from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel
from transformers.masking_utils import causal_mask_function

from grpo.policy.transformers.forward import attention
from grpo.policy.transformers.forward.attention import MaskRule
from grpo.policy.transformers.forward.packing import pack, packed_microbatches
from grpo.policy.transformers.forward.passes import hidden_states, token_batch
from grpo.policy.transformers.model import load

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
    """In order 9 8 6 5 4, 9 8 7 1 2, 9 8 7 3: edges [9 8], [6 5 4], [7], [1 2], [3]."""
    packed = pack([make([9, 8, 7], 1, 2), make([9, 8, 7], 3), make([9, 8, 6, 5], 4)], device=CPU)
    assert packed.token_ids.tolist() == [[9, 8, 6, 5, 4, 7, 1, 2, 3]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 3, 4, 2, 3, 4, 3]]
    assert packed.predictors.tolist() == [5, 6, 5, 3]  # 1 and 3 after the 7, 2 after the 1, 4 after the 5
    assert packed.targets.tolist() == [1, 2, 3, 4]
    assert packed.ends.tolist() == [7, 8, 4]


def test_common_beginnings_of_completions_are_in_the_row_once():
    """Completions 1 2, 1 2 3, 1 2 again and 1 4 after the prompt 9 8: edges [9 8 1], [2], [3], [4]."""
    samples = [make([9, 8], 1, 2), make([9, 8], 1, 2, 3), make([9, 8], 1, 2), make([9, 8], 1, 4)]
    packed = pack(samples, device=CPU)
    assert packed.token_ids.tolist() == [[9, 8, 1, 2, 3, 4]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 3, 4, 3]]
    assert packed.predictors.tolist() == [1, 2, 1, 2, 3, 1, 2, 1, 2]
    assert packed.targets.tolist() == [1, 2, 1, 2, 3, 1, 2, 1, 4]
    assert packed.ends.tolist() == [3, 4, 3, 5]


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
        0: {0}, 1: root, 2: root | {2}, 3: root | {2, 3}, 4: root | {2, 3, 4},
        5: root | {5}, 6: root | {5, 6}, 7: root | {5, 6, 7}, 8: root | {5, 8},
    }  # fmt: skip


def test_segments_of_similar_queries_and_keys_attend_in_one_block():
    """Prompt of 12, then 4 and 3 queries on 16 and 15 keys, 2 on 14; 3 of another prompt on 4 keys."""
    long, short = list(range(20, 32)), [9]
    samples = [make(long, 1, 1, 1, 1), make(long, 2, 2, 2), make(long, 3, 3), make(short, 4, 4, 4)]
    tree = pack(samples, device=CPU).tree
    assert tree is not None
    shapes = [(*block.queries.shape, block.keys.shape[1]) for block in tree.blocks]
    assert shapes == [(1, 12, 12), (2, 4, 16), (1, 4, 4), (1, 2, 14)]


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
        [make([9, 8], 1, 2, 3), make([9, 8], 1, 2, 3), make([9, 8], 1, 2), make([9, 8], 1, 2, 4), make([9, 8], 5)],
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
    """Prompt of 3 and a first token for three samples, then one of each: 4 + 1 + 1 fit into 6, the third does not."""
    siblings = [make([9, 8, 7], 1, k) for k in range(3)]
    cut = packed_microbatches(siblings, max_tokens=6)
    assert [len(micro) for micro in cut] == [2, 1]
    assert [pack(micro, device=CPU).token_ids.shape[1] for micro in cut] == [6, 5]


def test_equal_sequences_count_once():
    """Six of 4 tokens, of which three are equal: 4, 1 and 1, 1 and 1 more."""
    samples = [make([9, 8, 7], k) for k in (1, 1, 1, 2, 3, 4)]
    assert [len(m) for m in packed_microbatches(samples, max_tokens=5)] == [4, 2]
    assert [len(m) for m in packed_microbatches(samples[:3], max_tokens=2)] == [3]


def test_the_count_is_that_of_the_packed_row():
    """9 1 1 1 1 1 and 9 1 1 1 2 1 share four tokens, 9 5 1 one with them: 6 + 2 + 2 are 10, more than 9."""
    samples = [make([9, 1, 1, 1, 1], 1), make([9, 1, 1, 1, 2], 1), make([9, 5], 1)]
    for budget in (6, 7, 8, 9, 10):
        for micro in packed_microbatches(samples, max_tokens=budget):
            assert len(micro) == 1 or pack(micro, device=CPU).token_ids.shape[1] <= budget
    assert [len(m) for m in packed_microbatches(samples, max_tokens=10)] == [3]
    assert [len(m) for m in packed_microbatches(samples, max_tokens=9)] == [2, 1]


def test_many_samples_of_a_long_prompt_are_split():
    """40 completions of 1 token on a prompt of 20: 60 in a row may have 240 keys, 20 of the prompt and 21 of each."""
    cut = packed_microbatches([make([9] * 20, 10 + k) for k in range(40)], max_tokens=60)
    assert [len(micro) for micro in cut] == [10, 10, 10, 10]


@pytest.mark.parametrize("seed", range(20))
def test_random_sequences_are_read_from_the_row(seed: int):
    """The tokens of three letters along each chain, and as many in the row as the sequences have distinct prefixes."""
    rng = np.random.default_rng(seed)
    samples = [make([9], *rng.integers(0, 3, rng.integers(1, 7)).tolist()) for _ in range(int(rng.integers(1, 30)))]
    prefixes = {tuple(s.token_ids[: k + 1].tolist()) for s in samples for k in range(len(s.token_ids))}
    packed = pack(samples, device=CPU)
    row, predictors = packed.token_ids[0], packed.predictors.tolist()
    assert len(row) == len(prefixes)
    assert row[packed.ends].tolist() == [int(s.token_ids[-1]) for s in samples]
    for sample in samples:
        places = predictors[: len(sample.token_ids) - 1]
        del predictors[: len(places)]
        assert row[places].tolist() == sample.token_ids[:-1].tolist()
        assert packed.position_ids[0, places].tolist() == list(range(len(places)))


@pytest.mark.parametrize("seed", range(20))
def test_random_microbatches_keep_both_bounds(seed: int):
    """Of 8 tokens, and 32 keys: the lengths of all sequences and branching points, counted by their prefixes."""
    rng = np.random.default_rng(seed)
    samples = [make([9], *rng.integers(0, 2, rng.integers(1, 7)).tolist()) for _ in range(30)]
    cut = packed_microbatches(samples, max_tokens=8)
    assert sorted(id(sample) for micro in cut for sample in micro) == sorted(map(id, samples))
    for micro in cut:
        sequences = {tuple(sample.token_ids.tolist()) for sample in micro}
        prefixes = {ids[:k] for ids in sequences for k in range(1, len(ids) + 1)}
        branches = {prefix for prefix in prefixes if sum(longer[:-1] == prefix for longer in prefixes) > 1}
        assert len(prefixes) == pack(micro, device=CPU).token_ids.shape[1] <= 8
        assert sum(map(len, sequences | branches)) <= 32


def test_an_empty_batch_has_no_rows():
    """No samples make no microbatches."""
    assert packed_microbatches([], max_tokens=10) == []


def test_groups_stay_together_in_any_order():
    """Two prompts that begin alike, 3 + 1 + 1 each, the second's first two tokens shared: 5 + 3."""
    a, b = [make([9, 8, 7], k) for k in range(2)], [make([9, 8, 6], k) for k in range(2)]
    cut = packed_microbatches([a[0], b[0], a[1], b[1]], max_tokens=100)
    assert len(cut) == 1
    assert pack(cut[0], device=CPU).token_ids.shape[1] == 2 + 1 + 1 + 4
    assert [m.token_ids[2] for m in cut[0]] in ([7, 7, 6, 6], [6, 6, 7, 7])
    assert [len(m) for m in packed_microbatches([a[0], b[0], a[1], b[1]], max_tokens=5)] == [2, 2]


def test_a_sequence_longer_than_the_budget_is_a_row_of_its_own():
    """It cannot be split."""
    assert [len(m) for m in packed_microbatches([make([9] * 8, 1), make([7], 2)], max_tokens=4)] == [1, 1]
