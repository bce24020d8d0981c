"""Counts of the growth benchmark against values worked out by hand."""

from __future__ import annotations

import numpy as np
from transformers import LlamaConfig, LlamaForCausalLM

from grpo.learner.batch import Sample
from tests.benchmarks.growth import attended_tokens, flops_per_token


def _sample(token_ids: list[int], loss: list[int]) -> Sample:
    zeros = np.zeros(len(token_ids), dtype=np.float32)
    return Sample(
        token_ids=np.array(token_ids, dtype=np.int32),
        loss_mask=np.isin(np.arange(len(token_ids)), loss),
        sampler_logprobs=zeros,
        advantages=zeros,
        temperature=1.0,
        place="by hand",
    )


def test_a_shared_prompt_and_the_tail_after_the_last_loss_token_are_not_counted_again() -> None:
    first = _sample([1, 2, 3, 4, 5, 6], loss=[2, 3])  # states of tokens 0 to 2; 3 to 5 are never read
    sibling = _sample([1, 2, 7, 8, 9], loss=[2, 4])  # states of tokens 2 and 3, which attend to 3 and 4
    assert attended_tokens([first, sibling]) == [1, 2, 3, 3, 4]


def test_flops_count_six_per_weight_and_attention_to_an_average_context() -> None:
    config = LlamaConfig(
        vocab_size=10, hidden_size=8, intermediate_size=4, num_hidden_layers=2, num_attention_heads=2, head_dim=4
    )
    model = LlamaForCausalLM(config)
    weights = 2 * 10 * 8 + 2 * (4 * 8 * 8 + 3 * 8 * 4 + 2 * 8) + 8
    assert flops_per_token(model, [1, 2, 3]) == 6 * weights + 12 * 2 * 8 * 2
