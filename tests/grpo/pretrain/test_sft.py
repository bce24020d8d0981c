"""Next-token training: its schedule, its loss, its steps, and the base model that comes of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from grpo import progress
from grpo.config.pretrain import PretrainConfig
from grpo.learner.offline.demonstrations import TokenizedDemonstration
from grpo.messages import Message, Tool, ToolCall
from grpo.policy.transformers.model import load
from grpo.pretrain.base_model import make_base_model
from grpo.pretrain.sft import cosine_schedule, train_sft
from grpo.renderers.chat_template import Renderer


@pytest.fixture
def model(tiny_folder: Path) -> PreTrainedModel:
    return load(tiny_folder).model


def _written(ids: Sequence[int], *, learned_from: int) -> TokenizedDemonstration:
    mask = np.arange(len(ids)) >= learned_from
    return TokenizedDemonstration(token_ids=np.array(ids, dtype=np.int32), loss_mask=mask)


BATCH = [_written([5, 20, 31, 44, 60], learned_from=2), _written([7, 9, 11], learned_from=1)]


@pytest.mark.parametrize(
    ("step", "factor"),
    [
        (0, 0.25),  # (0 + 1) / 4
        (3, 1.0),
        (4, 1.0),  # .1 + .45 · (1 + cos 0)
        (6, 0.55),  # half of the 4 steps after the warm-up: cos π/2 = 0
        (7, 0.1 + 0.45 * (1 - math.sqrt(0.5))),
        (8, 0.1),
    ],
)
def test_the_learning_rate_warms_up_and_falls_to_a_tenth(step: int, factor: float):
    """4 of 8 steps of warm-up, then half a cosine."""
    assert cosine_schedule(step, steps=8, warmup=4) == pytest.approx(factor)


def test_a_schedule_that_is_all_warm_up_does_not_divide_by_zero():
    """At its last step, and behind it."""
    assert cosine_schedule(3, steps=4, warmup=4) == 1.0
    assert cosine_schedule(4, steps=4, warmup=4) == pytest.approx(1.0)
    assert cosine_schedule(5, steps=4, warmup=4) == pytest.approx(0.1)  # cos(π · 1 / 1) = -1


def test_the_loss_is_the_mean_cross_entropy_of_the_learned_tokens(model: PreTrainedModel):
    """Three tokens of the first conversation and two of the second, one mean over all five."""
    terms = []
    for written in BATCH:
        ids = torch.from_numpy(written.token_ids.astype(np.int64))[None]
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0], dim=-1)
        terms += [-logprobs[t - 1, ids[0, t]] for t in np.flatnonzero(written.loss_mask)]
    assert len(terms) == 5
    loss = train_sft(model, repeat(BATCH), steps=1, learning_rate=0.0)
    assert loss == pytest.approx(float(torch.stack(terms).mean().detach()), abs=1e-5)


def test_a_step_is_adamw_on_the_clipped_gradient(model: PreTrainedModel):
    """Two steps with a warm-up of 2: rates of half and of all, betas .9 and .98, decay .01, gradient norm 1."""
    expected = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(expected.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=0.01)
    ids = torch.tensor([[5, 20, 31]])
    for rate in (0.05, 0.1):
        optimizer.param_groups[0]["lr"] = rate
        loss = nn.functional.cross_entropy(expected(input_ids=ids).logits[0, :-1], ids[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(expected.parameters(), 1.0)
        optimizer.step()
    train_sft(model, repeat([_written([5, 20, 31], learned_from=1)]), steps=2, learning_rate=0.1, warmup=2)
    for name, parameter in expected.named_parameters():
        assert torch.allclose(model.get_parameter(name), parameter, atol=2e-4), name


def test_each_step_is_reported_with_its_loss_and_the_last_is_returned(model: PreTrainedModel):
    """Three batches are taken; the loss of repeated batches falls; the model is left in evaluation mode."""
    steps: list[tuple[int, float]] = []
    taken: list[int] = []

    def batches() -> Iterator[list[TokenizedDemonstration]]:
        for number in range(10):
            taken.append(number)
            yield BATCH

    last = train_sft(model, batches(), steps=3, learning_rate=1e-2, warmup=1, on_step=lambda *step: steps.append(step))
    assert [step for step, _ in steps] == [0, 1, 2]
    assert steps[0][1] > steps[1][1] > steps[2][1] == last
    assert taken == [0, 1, 2]
    assert not model.training


def test_zero_steps_have_no_loss(model: PreTrainedModel):
    """Not a number, and the weights stay."""
    before = copy.deepcopy(model.state_dict())
    assert math.isnan(train_sft(model, repeat(BATCH), steps=0, learning_rate=1.0))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


TOOL = Tool(name="look_up", parameters={"type": "object", "properties": {"order": {"type": "string"}}})
TALK = (
    Message(role="system", content="You help."),
    Message(role="user", content="my order 12"),
    Message(role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={"order": "12"}),)),
    Message(role="tool", content='{"price": 5}'),
    Message(role="assistant", content="it was 5 euro"),
)
PLAN = PretrainConfig(
    vocab_size=300, phrases=('{"price": ',), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, intermediate_size=48,
    cycle_steps=(3, 2), batch_size=2, learning_rate=1e-2, seed=5,
)  # fmt: skip


def test_a_base_model_is_written_with_its_tokenizer_and_tools(tmp_path: Path):
    """Sizes of the plan, phrases and tools; 5 steps of 2 cycles are reported; the same seed gives the same weights."""
    seen: list[tuple[str, int, int, bool]] = []
    with progress.observed(lambda stage, done, total, numbers: seen.append((stage, done, total, "loss" in numbers))):
        loss = make_base_model([TALK] * 3, [TOOL], PLAN, tmp_path / "one")
    assert seen == [("sft", step, 5, True) for step in range(1, 6)]
    assert 0 < loss < 10
    policy = load(tmp_path / "one")
    config = policy.model.config
    assert (config.hidden_size, config.num_hidden_layers, config.intermediate_size) == (32, 1, 48)
    assert (config.num_attention_heads, config.num_key_value_heads) == (2, 1)
    assert policy.tokenizer.tokenize('{"price": 5}')[0] == '{"price": '
    assert make_base_model([TALK] * 3, [TOOL], PLAN, tmp_path / "two") == loss
    assert load(tmp_path / "two").hash == policy.hash
    other = PLAN.model_copy(update={"seed": 6})
    make_base_model([TALK] * 3, [TOOL], other, tmp_path / "three")
    assert load(tmp_path / "three").hash != policy.hash


def test_all_but_the_system_prompt_is_learned(tmp_path: Path):
    """A model that memorizes one conversation has learned the customer's and the tool's turns, too."""
    plan = PLAN.model_copy(update={"cycle_steps": (80,), "batch_size": 8, "layers": 2})
    loss = make_base_model([TALK], [TOOL], plan, tmp_path)
    policy = load(tmp_path)
    renderer = Renderer(policy.tokenizer, tools=(TOOL,))
    ids, _ = renderer.tokenize_conversation(TALK)
    prompt = len(renderer.build_prompt(TALK[:1])) - 1
    with torch.no_grad():
        logprobs = torch.log_softmax(policy.model(input_ids=torch.tensor([ids])).logits[0], dim=-1)
    losses = [-float(logprobs[t - 1, ids[t]]) for t in range(1, len(ids))]
    learned, unlearned = losses[prompt - 1 :], losses[: prompt - 1]
    assert sum(learned) / len(learned) < 0.5
    assert sum(unlearned) / len(unlearned) > 2
    assert loss == pytest.approx(sum(learned) / len(learned), abs=0.1)  # of the step before the last change


def test_every_conversation_is_seen_once_before_any_is_seen_again(tmp_path: Path):
    """Four of one word each, two a step: the loss of two steps is on all four, in any order."""
    plan = PLAN.model_copy(update={"cycle_steps": (60,), "batch_size": 2, "learning_rate": 2e-2})
    talks = [
        (Message(role="user", content=f"code {k}"), Message(role="assistant", content=str(k) * 3)) for k in range(4)
    ]
    make_base_model(talks, (), plan, tmp_path)
    policy = load(tmp_path)
    renderer = Renderer(policy.tokenizer)
    for talk in talks:
        ids, mask = renderer.tokenize_conversation(talk)
        with torch.no_grad():
            likeliest = policy.model(input_ids=torch.tensor([ids])).logits[0].argmax(dim=-1)
        assert [int(likeliest[t - 1]) for t in np.flatnonzero(mask)] == [ids[t] for t in np.flatnonzero(mask)]
