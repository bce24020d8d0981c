from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PolicySettings
from grpo.config.rollout import RolloutSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.errors import PolicyError
from grpo.learner.inference_backend import make_inference_backend
from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenarios.scenario import Scenario
from tasks.load_base import load_base
from tests.grpo.policy.vllm_double import VLLM

PROMPT = [5, 20, 31, 44]


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> VLLM:
    """The double, installed in place of the package."""
    double = VLLM()
    for name, module in double.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return double


@pytest.fixture
def backend(vllm: VLLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """grpo.policy.vllm, freshly imported over the double."""
    monkeypatch.delitem(sys.modules, "grpo.policy.vllm", raising=False)
    module = importlib.import_module("grpo.policy.vllm")
    yield module
    vllm.paused = False
    module.engine.close()
    sys.modules.pop("grpo.policy.vllm", None)


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


@pytest.fixture(scope="module")
def trained(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained TINY: the same architecture with other weights."""
    policy, folder = load(tiny_folder), tmp_path_factory.mktemp("trained")
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.5)
    policy.save(folder)
    return folder


def _generate(policy: object, *prompts: list[int], seed: int = 1, temperature: float = 1.0) -> list[Generation]:
    """The turns of one conversation."""

    async def run() -> list[Generation]:
        renderer = Renderer(policy.tokenizer)  # type: ignore[attr-defined]
        async with policy.sampler(concurrency=1, renderer=renderer) as sampler:  # type: ignore[attr-defined]
            session = sampler.open()
            sampling = Sampling(temperature=temperature, max_new_tokens=6, seed=seed)
            return [await session.generate(Prompt(new_ids=ids), sampling) for ids in prompts]

    return asyncio.run(run())


def _exact(folder: Path, prompt: list[int], generation: Generation, temperature: float = 1.0) -> np.ndarray:
    with torch.no_grad():
        logits = load(folder).model(input_ids=torch.tensor([prompt + generation.token_ids])).logits[0].float()
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return np.array([float(logprobs[len(prompt) + k - 1, token]) for k, token in enumerate(generation.token_ids)])


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probabilities_are_at_the_sampling_temperature(backend: ModuleType, tiny_folder: Path, temperature: float):
    """In the first turn, and in a second one that continues it."""
    first, second = _generate(backend.VLLMPolicy(tiny_folder), PROMPT, [77, 78], temperature=temperature)
    for prompt, generation in ((PROMPT, first), ([*PROMPT, *first.token_ids, 77, 78], second)):
        assert generation.logprobs is not None
        assert np.abs(np.array(generation.logprobs) - _exact(tiny_folder, prompt, generation, temperature)).max() < 1e-5


def test_sampling_is_from_the_full_distribution(backend: ModuleType, vllm: VLLM, tiny: TransformersPolicy, tiny_folder):
    """No top-p, no top-k, no generation_config.json; prompts are cached; the stop token is the renderer's."""
    _generate(backend.VLLMPolicy(tiny_folder, gpu_memory_utilization=0.3, max_context=64), PROMPT)
    (args,), (params,) = vllm.args, vllm.params
    assert (params.top_p, params.top_k, params.logprobs, params.max_tokens) == (1.0, -1, 0, 6)
    assert params.stop_token_ids == [tiny.tokenizer.eos_token_id]
    assert (args.logprobs_mode, args.generation_config, args.enable_prefix_caching) == (
        "processed_logprobs",
        "vllm",
        True,
    )
    assert (args.dtype, args.max_model_len, args.gpu_memory_utilization) == ("float32", 64, 0.3)


def test_each_turn_of_each_sample_has_its_own_seed(backend: ModuleType, vllm: VLLM, tiny_folder: Path):
    """And the same one when it is repeated."""
    policy = backend.VLLMPolicy(tiny_folder)
    once, again, other = (_generate(policy, PROMPT, [77], seed=seed) for seed in (1, 1, 2))
    assert [generation.token_ids for generation in once] == [generation.token_ids for generation in again]
    assert [generation.token_ids for generation in once] != [generation.token_ids for generation in other]
    assert len({params.seed for params in vllm.params}) == 4


def test_the_next_checkpoint_s_weights_replace_the_last_ones(
    backend: ModuleType, vllm: VLLM, tiny_folder: Path, trained: Path
):
    """In the same engine, with a reset prefix cache."""
    _generate(backend.VLLMPolicy(tiny_folder, policy_hash="a"), PROMPT)
    _generate(backend.VLLMPolicy(tiny_folder, policy_hash="a"), PROMPT)
    (generation,) = _generate(backend.VLLMPolicy(trained, policy_hash="b"), PROMPT)
    assert np.abs(np.array(generation.logprobs) - _exact(trained, PROMPT, generation)).max() < 1e-5
    assert vllm.calls == [("start", str(tiny_folder)), ("reload", str(trained))]


def test_a_failed_cache_reset_stops_the_run(backend: ModuleType, vllm: VLLM, tiny_folder: Path, trained: Path):
    """The weights are reloaded before the engine is used again."""
    _generate(backend.VLLMPolicy(tiny_folder), PROMPT)
    vllm.refuses_cache_reset = True
    with pytest.raises(PolicyError, match="did not drop its prefix cache"):
        _generate(backend.VLLMPolicy(trained), PROMPT)
    vllm.refuses_cache_reset = False
    (generation,) = _generate(backend.VLLMPolicy(tiny_folder), [*PROMPT, 60])
    assert np.abs(np.array(generation.logprobs) - _exact(tiny_folder, [*PROMPT, 60], generation)).max() < 1e-5


def test_another_architecture_gets_another_engine(
    backend: ModuleType, vllm: VLLM, tiny_folder: Path, tmp_path: Path, tiny: TransformersPolicy
):
    """Weights of other shapes cannot be reloaded; the first engine frees its memory before."""
    from grpo.pretrain.init_model import init_model

    wide = init_model(tiny.tokenizer, hidden_size=64, layers=1, heads=4, kv_heads=2, mlp_size=64, seed=0)
    TransformersPolicy(wide, tiny.tokenizer).save(tmp_path)
    for folder in (tiny_folder, tmp_path):
        _generate(backend.VLLMPolicy(folder), PROMPT)
    assert vllm.calls == [("start", str(tiny_folder)), ("shutdown", str(tiny_folder)), ("start", str(tmp_path))]


def test_two_policies_take_turns_on_the_engine(backend: ModuleType, vllm: VLLM, tiny_folder: Path, trained: Path):
    """The second waits while the first is in use; each generates with its own weights."""
    generations: dict[Path, list[Generation]] = {}

    def work(folder: Path) -> None:
        generations[folder] = _generate(backend.VLLMPolicy(folder), PROMPT)

    vllm.paused = True
    workers = [threading.Thread(target=work, args=(folder,)) for folder in (tiny_folder, trained)]
    workers[0].start()
    assert vllm.started.wait(60)
    workers[1].start()
    workers[1].join(0.5)  # enough time for the wrong behaviour
    assert vllm.calls == [("start", str(tiny_folder))]
    vllm.paused = False
    for worker in workers:
        worker.join(60)
    for folder in (tiny_folder, trained):
        (generation,) = generations[folder]
        assert np.abs(np.array(generation.logprobs) - _exact(folder, PROMPT, generation)).max() < 1e-5


def test_a_cancelled_turn_is_aborted_in_the_engine(backend: ModuleType, vllm: VLLM, tiny_folder: Path):
    """The engine does not continue a failed episode."""
    policy = backend.VLLMPolicy(tiny_folder)
    vllm.paused = True
    (trajectory,) = collect(
        [Scenario(id="s", user_responses=("hello",))],
        policy,
        ConversationEnvironment(),
        Renderer(policy.tokenizer),
        RolloutSettings(turn_timeout_s=0.2, error_budget=1.0),
        group_size=1,
        temperature=1.0,
        run_seed=0,
        iteration=0,
    )
    assert trajectory.error == "TimeoutError: turn 1 of the policy took longer than 0.2 s (rollout.turn_timeout_s)"
    assert vllm.aborted.wait(60)


def test_a_turn_aborted_by_the_engine_stops_the_run(backend: ModuleType, vllm: VLLM, tiny_folder: Path):
    """Its partial output is not a turn."""
    vllm.finish_reason = "abort"
    with pytest.raises(PolicyError, match="vLLM ended a turn by 'abort'"):
        _generate(backend.VLLMPolicy(tiny_folder), PROMPT)


def test_a_setting_selects_the_inference_backend(backend: ModuleType, vllm: VLLM, tiny_folder: Path, tmp_path: Path):
    """The same checkpoint and hash on either; max_context and memory are those of the rollout."""
    store = str(tmp_path)
    start = load_base.fn(policy=PolicySettings(model=str(tiny_folder)), content="", store=store)
    here = make_inference_backend(ArtifactStore(store), start.checkpoint, RolloutSettings())
    there = make_inference_backend(
        ArtifactStore(store),
        start.checkpoint,
        RolloutSettings(backend="vllm", max_context=100, gpu_memory_utilization=0.4),
    )
    assert isinstance(here, TransformersPolicy)
    assert isinstance(there, backend.VLLMPolicy)
    assert here.hash == there.hash == start.policy
    _generate(there, PROMPT)
    assert (vllm.args[0].max_model_len, vllm.args[0].gpu_memory_utilization) == (100, 0.4)


def test_a_folder_without_a_model_is_refused(backend: ModuleType, tiny_folder: Path, tmp_path: Path):
    """Before an engine is started."""
    with pytest.raises(PolicyError, match=r"config\.json is missing"):
        backend.VLLMPolicy(tmp_path)
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    del config["max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(PolicyError, match="no max_position_embeddings"):
        backend.VLLMPolicy(folder)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed: pip install 'grpo[vllm]'")
def test_the_real_engine_matches_a_plain_forward_pass(tiny_folder: Path, trained: Path):
    """Its log-probabilities, before and after other weights are loaded."""
    from grpo.policy.vllm import VLLMPolicy

    for folder in (tiny_folder, trained):
        (generation,) = _generate(
            VLLMPolicy(folder, max_context=128, gpu_memory_utilization=0.2), PROMPT, temperature=0.7
        )
        assert np.abs(np.array(generation.logprobs) - _exact(folder, PROMPT, generation, 0.7)).max() < 1e-2
