from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from grpo.config.training import LoraSettings
from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.policy.transformers.adapters import add_adapters
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.chat_template import Renderer
from grpo.trajectories import Trajectory
from tests.doubles import play_desk
from tests.vllm.engine import MARKS, MEMORY, desk_config, largest_error, surprise
from tests.vllm.models import shifted

if TYPE_CHECKING:
    from grpo.policy.vllm import VLLMPolicy

pytestmark = MARKS


@pytest.fixture(scope="module", autouse=True)
def _engine() -> Iterator[None]:
    """One engine for the module, as for a run."""
    yield
    from grpo.policy.vllm import engine

    engine.close()


def _policy(folder: Path, base: Path | None = None) -> VLLMPolicy:
    from grpo.policy.vllm import VLLMPolicy

    return VLLMPolicy(folder, base=base, max_context=512, gpu_memory_utilization=MEMORY)


def _episodes(policy: VLLMPolicy | TransformersPolicy) -> list[Trajectory]:
    """Desk episodes of eight scenarios, four each, all at once."""
    return play_desk(policy, desk_config(), scenarios=8, group_size=4)  # type: ignore[arg-type]


def test_log_probabilities_of_conversations_with_tools_are_ours(clerk: Path):
    """32 conversations at once, some with tool results: within 1e-3 of a plain forward pass over the whole episode."""
    trajectories = _episodes(_policy(clerk))
    assert any(turn.message.role == "tool" for trajectory in trajectories for turn in trajectory.turns)
    assert max(len(trajectory.turns) for trajectory in trajectories) > 4
    error, tokens = largest_error(trajectories, load(clerk))
    print(f"largest difference {error:.1e} over {tokens} tokens")
    assert tokens > 500
    assert error < 1e-3


def test_tokens_are_sampled_from_the_whole_distribution(clerk: Path):
    """Their mean surprise is the entropy, within four standard errors; without a tail it would be lower."""
    assert abs(surprise(_episodes(_policy(clerk)), load(clerk))) < 4


def test_the_same_seeds_give_the_same_episodes(clerk: Path):
    """In another batch too: the first scenario alone, then among others."""
    policy = _policy(clerk)
    alone = play_desk(policy, desk_config(), scenarios=1, group_size=2)  # type: ignore[arg-type]
    together = _episodes(policy)
    for trajectory, again in zip(alone, together, strict=False):
        assert trajectory.token_ids.tolist() == again.token_ids.tolist()
    assert alone[0].token_ids.tolist() != alone[1].token_ids.tolist()


def test_the_next_version_is_played_without_the_last_one_s_cache(clerk: Path, tmp_path: Path):
    """The same prompts are cached before; back on the first version its log-probabilities return."""
    shifted(clerk, tmp_path, std=0.01, seed=1)
    before = _episodes(_policy(clerk))
    after = _episodes(_policy(tmp_path))
    back = _episodes(_policy(clerk))
    old, new = load(clerk), load(tmp_path)
    assert largest_error(after, new)[0] < 1e-3
    assert largest_error(after, old)[0] > 0.1
    assert largest_error(back, old)[0] < 1e-3
    assert [trajectory.token_ids.tolist() for trajectory in back] == [
        trajectory.token_ids.tolist() for trajectory in before
    ]


def test_adapters_are_played(clerk: Path, tmp_path: Path):
    """Merged into their base, in the engine of the base."""
    adapted = load(clerk)
    add_adapters(adapted.model, LoraSettings(r=4), seed=0)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in adapted.model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
    adapted.save(tmp_path)
    trajectories = _episodes(_policy(tmp_path, base=clerk))
    error, _ = largest_error(trajectories, adapted)
    assert error < 1e-3
    assert largest_error(trajectories, load(clerk))[0] > 0.1


def test_weights_are_replaced_right_after_turns_were_cancelled(clerk: Path, tmp_path: Path):
    """Turns in flight, of 256 that were started, are aborted; the engine drops its cache and plays the next version."""
    shifted(clerk, tmp_path, std=0.01, seed=3)

    async def cancelled() -> int:
        policy = _policy(clerk)
        async with policy.sampler(concurrency=256, renderer=Renderer(policy.tokenizer)) as sampler:
            turns = [
                asyncio.create_task(
                    sampler.open().generate(
                        Prompt(new_ids=[5, 20, 31, 44]), Sampling(temperature=2.0, max_new_tokens=480, seed=seed)
                    )
                )
                for seed in range(256)
            ]
            await asyncio.sleep(0.3)
            running = sum(not turn.done() for turn in turns)
            for turn in turns:
                turn.cancel()
            outcomes = await asyncio.gather(*turns, return_exceptions=True)
            assert all(isinstance(outcome, Generation | asyncio.CancelledError) for outcome in outcomes)
            return running

    assert asyncio.run(cancelled()) > 0
    assert largest_error(_episodes(_policy(tmp_path)), load(tmp_path))[0] < 1e-3


def test_a_model_whose_heads_have_no_kernel_stops_the_run_with_a_remedy(tiny_folder: Path, clerk: Path):
    """The engine ends at the first turn; the next policy gets another one."""
    from vllm.platforms import current_platform

    from grpo.errors import PolicyError

    if not current_platform.is_cpu():
        pytest.skip("GPUs have kernels for heads of 8 values")
    with pytest.raises(PolicyError, match=r"vLLM's engine ended .*set rollout.backend: transformers"):
        _episodes(_policy(tiny_folder))
    trajectories = play_desk(_policy(clerk), desk_config(), scenarios=1, group_size=2)  # type: ignore[arg-type]
    assert np.isfinite(largest_error(trajectories, load(clerk))[0])
