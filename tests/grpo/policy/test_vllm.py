from __future__ import annotations

import asyncio
import importlib
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
from safetensors.torch import save_file

from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PolicySettings
from grpo.config.rollout import RolloutSettings
from grpo.config.training import LoraSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.errors import PolicyError
from grpo.learner.checkpoints import STATE, CheckpointState, save_base
from grpo.learner.inference_backend import make_inference_backend
from grpo.policy.catalog import open_policy
from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.policy.transformers.adapters import add_adapters
from grpo.policy.transformers.dtype import Dtype
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo_tasks.load_base import load_base
from tests.doubles import put_folder
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
    return _logprobs(load(folder), prompt, generation, temperature)


def _logprobs(
    policy: TransformersPolicy, prompt: list[int], generation: Generation, temperature: float = 1.0
) -> np.ndarray:
    """Log-probabilities of the generated tokens in a plain forward pass."""
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([prompt + generation.token_ids])).logits[0].float()
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return np.array([float(logprobs[len(prompt) + k - 1, token]) for k, token in enumerate(generation.token_ids)])


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probabilities_are_at_the_sampling_temperature(backend: ModuleType, tiny_folder: Path, temperature: float):
    """In the first turn, and in a second one that continues it."""
    first, second = _generate(backend.VLLMPolicy(tiny_folder), PROMPT, [77, 78], temperature=temperature)
    for prompt, generation in ((PROMPT, first), ([*PROMPT, *first.token_ids, 77, 78], second)):
        assert generation.logprobs is not None
        assert np.abs(np.array(generation.logprobs) - _exact(tiny_folder, prompt, generation, temperature)).max() < 1e-5


def test_the_likeliest_tokens_are_returned_with_each_token(backend: ModuleType, tiny_folder: Path):
    """Three of each of 6 steps, as in a plain forward pass, without a sampled token that is less likely."""

    async def run() -> Generation:
        policy = backend.VLLMPolicy(tiny_folder)
        async with policy.sampler(concurrency=1, renderer=Renderer(policy.tokenizer)) as sampler:
            sampling = Sampling(temperature=0.7, max_new_tokens=6, seed=1, top_logprobs=3)
            return await sampler.open().generate(Prompt(new_ids=PROMPT), sampling)

    generation = asyncio.run(run())
    with torch.no_grad():
        logits = load(tiny_folder).model(input_ids=torch.tensor([PROMPT + generation.token_ids])).logits[0].float()
    values, ids = torch.log_softmax(logits / 0.7, dim=-1)[len(PROMPT) - 1 : -1].topk(3)
    assert generation.top_logprobs is not None
    assert [[token for token, _ in top] for top in generation.top_logprobs] == ids.tolist()
    for top, row in zip(generation.top_logprobs, values.tolist(), strict=True):
        assert [logprob for _, logprob in top] == pytest.approx(row, abs=1e-5)


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


def test_on_a_cpu_each_version_gets_another_engine(backend: ModuleType, vllm: VLLM, tiny_folder: Path, trained: Path):
    """A reload would leave packed copies of the last weights in use; the same version keeps its engine."""
    vllm.on_cpu = True
    for folder in (tiny_folder, tiny_folder, trained):
        _generate(backend.VLLMPolicy(folder), PROMPT)
    assert vllm.calls == [("start", str(tiny_folder)), ("shutdown", str(tiny_folder)), ("start", str(trained))]


def test_a_checkpoint_s_optimizer_is_not_read_as_weights(
    backend: ModuleType, vllm: VLLM, tiny_folder: Path, tmp_path: Path
):
    """vLLM reads each safetensors file of a folder; the hash is that of the weights."""
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "checkpoint"))
    for name in ("optimizer", "critic"):
        save_file({"lm_head.weight.exp_avg": torch.zeros(2)}, folder / f"{name}.safetensors")
    policy = backend.VLLMPolicy(folder)
    _generate(policy, PROMPT)
    assert vllm.calls == [("start", str(folder))]
    assert policy.hash == backend.VLLMPolicy(tiny_folder).hash


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
    assert vllm.started.wait(240)
    workers[1].start()
    workers[1].join(0.5)  # enough time for the wrong behaviour
    assert vllm.calls == [("start", str(tiny_folder))]
    vllm.paused = False
    for worker in workers:
        worker.join(240)
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
    assert trajectory.error is not None
    assert trajectory.error.startswith(
        "TimeoutError: turn 1 of the policy took longer than 0.2 s (rollout.turn_timeout_s)"
    )
    assert vllm.aborted.wait(240)


def test_a_turn_aborted_by_the_engine_stops_the_run(backend: ModuleType, vllm: VLLM, tiny_folder: Path):
    """Its partial output is not a turn."""
    vllm.finish_reason = "abort"
    with pytest.raises(PolicyError, match="vLLM ended a turn by 'abort'"):
        _generate(backend.VLLMPolicy(tiny_folder), PROMPT)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_setting_selects_the_inference_backend(
    backend: ModuleType, vllm: VLLM, tiny_folder: Path, tmp_path: Path, dtype: Dtype
):
    """The same checkpoint, hash and dtype on either; max_context and memory are those of the rollout."""
    store = str(tmp_path)
    start = load_base.fn(policy=PolicySettings(model=str(tiny_folder), dtype=dtype), content="", store=store)
    here = make_inference_backend(ArtifactStore(store), start.checkpoint, RolloutSettings())
    there = make_inference_backend(
        ArtifactStore(store),
        start.checkpoint,
        RolloutSettings(backend="vllm", max_context=100, gpu_memory_utilization=0.4),
    )
    assert isinstance(here, TransformersPolicy)
    assert isinstance(there, backend.VLLMPolicy)
    assert here.hash == there.hash == start.policy
    assert here.model.dtype == getattr(torch, dtype)
    _generate(there, PROMPT)
    arguments = vllm.args[0]
    assert (arguments.max_model_len, arguments.gpu_memory_utilization, arguments.dtype) == (100, 0.4, dtype)


def test_a_folder_without_a_model_is_refused(backend: ModuleType, tmp_path: Path):
    """Before an engine is started."""
    with pytest.raises(PolicyError, match=r"config\.json is missing"):
        backend.VLLMPolicy(tmp_path)


def test_a_model_without_positions_is_limited_by_the_rollout(backend: ModuleType, tiny_folder: Path, tmp_path: Path):
    """Bloom has no limit of its own; a Llama of 40 positions keeps to them."""
    folder = Path(shutil.copytree(tiny_folder, tmp_path / "model"))
    for config, limit in (({"model_type": "bloom"}, 100), ({"model_type": "llama", "max_position_embeddings": 40}, 40)):
        (folder / "config.json").write_text(json.dumps(config))
        assert backend.VLLMPolicy(folder, max_context=100).max_context == limit


@pytest.mark.parametrize(("on_cpu", "chunked"), [(True, False), (False, None)])
def test_a_prompt_is_never_split_on_a_cpu(
    backend: ModuleType, vllm: VLLM, tiny_folder: Path, on_cpu: bool, chunked: bool | None
):
    """A chunk of a seeded request rewinds the request's generator, which ends an engine on the CPU."""
    vllm.on_cpu = on_cpu
    _generate(backend.VLLMPolicy(tiny_folder), PROMPT)
    assert vllm.args[0].enable_chunked_prefill is chunked


def test_another_dtype_gets_another_engine(backend: ModuleType, vllm: VLLM, tiny_folder: Path):
    """Weights of the same files, held in bfloat16."""
    _generate(backend.VLLMPolicy(tiny_folder, policy_hash="a"), PROMPT)
    _generate(backend.VLLMPolicy(tiny_folder, policy_hash="b", dtype="bfloat16"), PROMPT)
    assert [args.dtype for args in vllm.args] == ["float32", "bfloat16"]


def test_an_engine_that_does_not_start_is_an_error_with_its_reason(backend: ModuleType, vllm: VLLM, tiny_folder: Path):
    """Memory is the usual one; the next policy starts anew."""
    vllm.refuses_start = "Free memory on device is less than desired"
    remedy = "lower rollout.gpu_memory_utilization, now 0.7, or rollout.max_context, now 64"
    with pytest.raises(PolicyError, match=f"vLLM does not start .*: Free memory on device is less.*{remedy}"):
        _generate(backend.VLLMPolicy(tiny_folder, gpu_memory_utilization=0.7, max_context=64), PROMPT)
    vllm.refuses_start = ""
    assert _generate(backend.VLLMPolicy(tiny_folder), PROMPT)


def test_a_dead_engine_stops_the_run_and_is_replaced(backend: ModuleType, vllm: VLLM, tiny_folder: Path):
    """Its own message names no reason, its log does; a retry of the stage starts another engine."""
    vllm.dies = True
    with pytest.raises(PolicyError, match=r"vLLM's engine ended during a turn, for the reason in its log above"):
        _generate(backend.VLLMPolicy(tiny_folder), PROMPT)
    vllm.dies = False
    assert _generate(backend.VLLMPolicy(tiny_folder), PROMPT)
    assert [name for name, _ in vllm.calls] == ["start", "shutdown", "start"]


@pytest.fixture
def adapted(tiny_folder: Path, tmp_path: Path) -> tuple[Path, TransformersPolicy]:
    """Folder of trained adapters, and the policy that they make of TINY."""
    policy = load(tiny_folder)
    add_adapters(policy.model, LoraSettings(r=2), seed=0)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.5)
    folder = tmp_path / "adapters"
    policy.save(folder)
    return folder, policy


def test_adapters_are_merged_into_their_base(
    backend: ModuleType, vllm: VLLM, tiny_folder: Path, adapted: tuple[Path, TransformersPolicy]
):
    """In the engine of the base, with the adapted model's log-probabilities; the merged files are removed."""
    folder, policy = adapted
    _generate(backend.VLLMPolicy(tiny_folder), PROMPT)
    (generation,) = _generate(backend.VLLMPolicy(folder, base=tiny_folder), PROMPT)
    assert np.abs(np.array(generation.logprobs) - _logprobs(policy, PROMPT, generation)).max() < 1e-5
    assert np.abs(np.array(generation.logprobs) - _exact(tiny_folder, PROMPT, generation)).max() > 0.1
    (started, _), (reloaded, merged) = vllm.calls
    assert (started, reloaded) == ("start", "reload")
    assert not Path(merged).exists()


def test_an_address_of_adapters_is_played_with_their_base(
    backend: ModuleType, tiny_folder: Path, trained: Path, adapted: tuple[Path, TransformersPolicy]
):
    """The base is the one that adapter_config.json names; another base is another policy."""
    folder, policy = adapted
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(tiny_folder)}))
    opened = open_policy(f"vllm://{folder}")
    (generation,) = _generate(opened, PROMPT)
    assert np.abs(np.array(generation.logprobs) - _logprobs(policy, PROMPT, generation)).max() < 1e-5
    assert opened.hash not in (backend.VLLMPolicy(tiny_folder).hash, backend.VLLMPolicy(folder, base=trained).hash)


def test_a_checkpoint_of_adapters_keeps_its_hash(
    backend: ModuleType, tiny_folder: Path, adapted: tuple[Path, TransformersPolicy], tmp_path: Path
):
    """Trajectories name the trained policy, not the merged weights."""
    folder, policy = adapted
    store = ArtifactStore(str(tmp_path / "store"))
    base = put_folder(store, "checkpoint", lambda new: save_base(load(tiny_folder), new))
    state = CheckpointState(policy_hash=policy.hash, path_check=policy.path_check, base=base)
    (folder / STATE).write_text(state.model_dump_json())
    checkpoint = put_folder(store, "checkpoint", lambda new: shutil.copytree(folder, new, dirs_exist_ok=True))
    played = make_inference_backend(store, checkpoint, RolloutSettings(backend="vllm", max_context=64))
    assert isinstance(played, backend.VLLMPolicy)
    assert played.hash == policy.hash
    (generation,) = _generate(played, PROMPT)
    assert np.abs(np.array(generation.logprobs) - _logprobs(policy, PROMPT, generation)).max() < 1e-5


def test_weights_are_replaced_after_cancelled_turns_have_been_aborted(
    backend: ModuleType, vllm: VLLM, tiny_folder: Path, trained: Path
):
    """Until then they hold blocks of the prefix cache."""

    async def cancelled() -> None:
        policy = backend.VLLMPolicy(tiny_folder)
        async with policy.sampler(concurrency=1, renderer=Renderer(policy.tokenizer)) as sampler:
            sampling = Sampling(temperature=1, max_new_tokens=6, seed=1)
            turn = asyncio.create_task(sampler.open().generate(Prompt(new_ids=PROMPT), sampling))
            assert await asyncio.to_thread(vllm.started.wait, 240)
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn

    vllm.paused, vllm.abort_s = True, 0.3
    asyncio.run(cancelled())
    vllm.paused = False
    _generate(backend.VLLMPolicy(trained), PROMPT)
    assert [name for name, _ in vllm.calls] == ["start", "abort", "reload"]
