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
from tasks.load_base import base
from tests.grpo.policy.vllm_double import VLLM

PROMPT = [5, 20, 31, 44]


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> VLLM:
    """The double, in the place of the package."""
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
    vllm.held = False
    module.engine.close()
    sys.modules.pop("grpo.policy.vllm", None)


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


@pytest.fixture(scope="module")
def trained(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TINY after something was learned: the same architecture with other weights."""
    policy, folder = load(tiny_folder), tmp_path_factory.mktemp("trained")
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.5)
    policy.save(folder)
    return folder


def _speak(policy: object, *heard: list[int], seed: int = 1, temperature: float = 1.0) -> list[Generation]:
    """The turns of one conversation."""

    async def run() -> list[Generation]:
        renderer = Renderer(policy.tokenizer)  # type: ignore[attr-defined]
        async with policy.sampler(concurrency=1, renderer=renderer) as sampler:  # type: ignore[attr-defined]
            session = sampler.open()
            sampling = Sampling(temperature=temperature, max_new_tokens=6, seed=seed)
            return [await session.generate(Prompt(new_ids=ids), sampling) for ids in heard]

    return asyncio.run(run())


def _exact(folder: Path, prompt: list[int], said: Generation, temperature: float = 1.0) -> np.ndarray:
    with torch.no_grad():
        logits = load(folder).model(input_ids=torch.tensor([prompt + said.token_ids])).logits[0].float()
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return np.array([float(logprobs[len(prompt) + k - 1, token]) for k, token in enumerate(said.token_ids)])


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probabilities_are_those_of_the_temperature(backend: ModuleType, tiny_folder: Path, temperature: float):
    """Of the first turn, and of a second one that continues all that was heard and said."""
    first, second = _speak(backend.VLLMPolicy(tiny_folder), PROMPT, [77, 78], temperature=temperature)
    for prompt, said in ((PROMPT, first), ([*PROMPT, *first.token_ids, 77, 78], second)):
        assert said.logprobs is not None
        assert np.abs(np.array(said.logprobs) - _exact(tiny_folder, prompt, said, temperature)).max() < 1e-5


def test_nothing_is_cut_off_the_distribution(backend: ModuleType, vllm: VLLM, tiny: TransformersPolicy, tiny_folder):
    """No top-p, no top-k, no generation_config.json; prompts are cached; the stop token is the renderer's."""
    _speak(backend.VLLMPolicy(tiny_folder, gpu_memory_utilization=0.3, max_context=64), PROMPT)
    (args,), (params,) = vllm.args, vllm.params
    assert (params.top_p, params.top_k, params.logprobs, params.max_tokens) == (1.0, -1, 0, 6)
    assert params.stop_token_ids == [tiny.tokenizer.eos_token_id]
    assert (args.logprobs_mode, args.generation_config, args.enable_prefix_caching) == (
        "processed_logprobs",
        "vllm",
        True,
    )
    assert (args.dtype, args.max_model_len, args.gpu_memory_utilization) == ("float32", 64, 0.3)


def test_each_turn_of_each_sample_draws_its_own_random_numbers(backend: ModuleType, vllm: VLLM, tiny_folder: Path):
    """And the same ones when it is played again."""
    policy = backend.VLLMPolicy(tiny_folder)
    once, again, other = (_speak(policy, PROMPT, [77], seed=seed) for seed in (1, 1, 2))
    assert [said.token_ids for said in once] == [said.token_ids for said in again]
    assert [said.token_ids for said in once] != [said.token_ids for said in other]
    assert len({params.seed for params in vllm.params}) == 4


def test_the_next_checkpoint_s_weights_replace_the_last_ones(
    backend: ModuleType, vllm: VLLM, tiny_folder: Path, trained: Path
):
    """In the same engine, and prompts read with the old weights are read again."""
    _speak(backend.VLLMPolicy(tiny_folder, policy_hash="a"), PROMPT)
    _speak(backend.VLLMPolicy(tiny_folder, policy_hash="a"), PROMPT)
    (said,) = _speak(backend.VLLMPolicy(trained, policy_hash="b"), PROMPT)
    assert np.abs(np.array(said.logprobs) - _exact(trained, PROMPT, said)).max() < 1e-5
    assert vllm.calls == [("start", str(tiny_folder)), ("reload", str(trained))]


def test_a_cache_that_is_not_dropped_stops_the_run(backend: ModuleType, vllm: VLLM, tiny_folder: Path, trained: Path):
    """Half old and half new is no policy: before the engine is used again, weights are loaded whole."""
    _speak(backend.VLLMPolicy(tiny_folder), PROMPT)
    vllm.keeps_cache = True
    with pytest.raises(PolicyError, match="did not drop its prefix cache"):
        _speak(backend.VLLMPolicy(trained), PROMPT)
    vllm.keeps_cache = False
    (said,) = _speak(backend.VLLMPolicy(tiny_folder), [*PROMPT, 60])
    assert np.abs(np.array(said.logprobs) - _exact(tiny_folder, [*PROMPT, 60], said)).max() < 1e-5


def test_another_architecture_gets_another_engine(
    backend: ModuleType, vllm: VLLM, tiny_folder: Path, tmp_path: Path, tiny: TransformersPolicy
):
    """Weights of other shapes cannot be loaded over; the first engine frees its memory before."""
    from grpo.pretrain.init_model import init_model

    wide = init_model(tiny.tokenizer, hidden_size=64, layers=1, heads=4, kv_heads=2, mlp_size=64, seed=0)
    TransformersPolicy(wide, tiny.tokenizer).save(tmp_path)
    for folder in (tiny_folder, tmp_path):
        _speak(backend.VLLMPolicy(folder), PROMPT)
    assert vllm.calls == [("start", str(tiny_folder)), ("shutdown", str(tiny_folder)), ("start", str(tmp_path))]


def test_two_policies_take_turns_on_the_engine(backend: ModuleType, vllm: VLLM, tiny_folder: Path, trained: Path):
    """The second waits until nobody uses the first; each speaks with its own weights."""
    said: dict[Path, list[Generation]] = {}
    vllm.held = True
    workers = [
        threading.Thread(target=lambda folder=folder: said.update({folder: _speak(backend.VLLMPolicy(folder), PROMPT)}))
        for folder in (tiny_folder, trained)
    ]
    workers[0].start()
    assert vllm.started.wait(60)
    workers[1].start()
    workers[1].join(0.5)  # time enough to do it wrong
    assert vllm.calls == [("start", str(tiny_folder))]
    vllm.held = False
    for worker in workers:
        worker.join(60)
    for folder in (tiny_folder, trained):
        (one,) = said[folder]
        assert np.abs(np.array(one.logprobs) - _exact(folder, PROMPT, one)).max() < 1e-5


def test_a_turn_that_is_cut_off_is_aborted_in_the_engine(backend: ModuleType, vllm: VLLM, tiny_folder: Path):
    """The engine does not go on speaking for an episode that has failed."""
    policy = backend.VLLMPolicy(tiny_folder)
    vllm.held = True
    (played,) = collect(
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
    assert played.error == "TimeoutError: turn 1 of the policy took longer than 0.2 s (rollout.turn_timeout_s)"
    assert vllm.aborted.wait(60)


def test_a_turn_that_the_engine_gave_up_stops_the_run(backend: ModuleType, vllm: VLLM, tiny_folder: Path):
    """What it said until then is no turn."""
    vllm.ends_by = "abort"
    with pytest.raises(PolicyError, match="vLLM ended a turn by 'abort'"):
        _speak(backend.VLLMPolicy(tiny_folder), PROMPT)


def test_the_backend_of_a_run_is_a_setting(backend: ModuleType, vllm: VLLM, tiny_folder: Path, tmp_path: Path):
    """The same checkpoint, by its own hash, on either; room and memory are those of the rollout."""
    store = str(tmp_path)
    start = base.fn(policy=PolicySettings(model=str(tiny_folder)), content="", store=store)
    here = make_inference_backend(ArtifactStore(store), start.checkpoint, RolloutSettings())
    there = make_inference_backend(
        ArtifactStore(store),
        start.checkpoint,
        RolloutSettings(backend="vllm", max_context=100, gpu_memory_utilization=0.4),
    )
    assert isinstance(here, TransformersPolicy)
    assert isinstance(there, backend.VLLMPolicy)
    assert here.hash == there.hash == start.policy
    _speak(there, PROMPT)
    assert (vllm.args[0].max_model_len, vllm.args[0].gpu_memory_utilization) == (100, 0.4)


def test_a_folder_that_is_no_model_is_named(backend: ModuleType, tiny_folder: Path, tmp_path: Path):
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
def test_the_real_engine_says_what_the_weights_say(tiny_folder: Path, trained: Path):
    """Its log-probabilities are those of a plain forward pass, before and after other weights are loaded."""
    from grpo.policy.vllm import VLLMPolicy

    for folder in (tiny_folder, trained):
        (said,) = _speak(VLLMPolicy(folder, max_context=128, gpu_memory_utilization=0.2), PROMPT, temperature=0.7)
        assert np.abs(np.array(said.logprobs) - _exact(folder, PROMPT, said, 0.7)).max() < 1e-2
