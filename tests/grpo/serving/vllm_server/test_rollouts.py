"""Rollouts on the application of `vllm serve`, with a double of its engine. tests/vllm has the real one."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.config.rollout import RolloutSettings
from grpo.config.training import LoraSettings, TrainingSettings
from grpo.errors import PolicyError
from grpo.learner.batch import to_samples
from grpo.learner.checkpoints import load_policy, save, save_base
from grpo.learner.inference_backend import make_servers_policy
from grpo.learner.learner import Learner
from grpo.learner.logprobs import with_proximal_logprobs
from grpo.policy.policy import Prompt, Sampling
from grpo.policy.servers.policy import KEY, ServersPolicy
from grpo.policy.servers.protocol import FILES, TURNS, WEIGHTS
from grpo.policy.transformers.adapters import add_adapters
from grpo.policy.transformers.model import TransformersPolicy, load, weights_hash
from grpo.renderers.chat_template import Renderer
from grpo.serving.access.keys import KeyStore
from grpo.trajectories import Trajectory
from tests.doubles import play_desk, put_folder, short_run
from tests.grpo.learner.conftest import perturbed
from tests.grpo.policy.vllm_double import VLLM
from tests.grpo.serving.vllm_server.vllm_app import VLLMServer, vllm_server

Stored = tuple[ArtifactStore, Artifact]
MODULES = ("grpo.policy.vllm", "grpo.serving.vllm_server.rollouts", "grpo.serving.vllm_server.middleware")


@pytest.fixture(scope="module", autouse=True)
def _vllm() -> Iterator[None]:
    """The double in place of the package vllm."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in VLLM().modules().items():
            patch.setitem(sys.modules, name, module)
        for name in MODULES:
            patch.delitem(sys.modules, name, raising=False)
        yield
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_HOME", str(home))
        store = KeyStore(home / "keys.json")
        secrets = {scope: store.create(scope, [scope]) for scope in ("rollout", "chat")}
        patch.setenv(KEY, secrets["rollout"])
        yield secrets


@pytest.fixture(scope="module")
def server(tiny_folder: Path, keys: dict[str, str]) -> Iterator[VLLMServer]:
    with vllm_server(tiny_folder) as running:
        yield running


@pytest.fixture(scope="module")
def versions(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Stored]:
    """The model, with other weights, and with three different adapters."""
    store, policy = ArtifactStore(str(tmp_path_factory.mktemp("store"))), load(tiny_folder)
    base = put_folder(store, "checkpoint", partial(save_base, policy))
    other = TransformersPolicy(perturbed(policy.model), policy.tokenizer)
    saved = [base, put_folder(store, "checkpoint", partial(save_base, other))]
    for value in (0.05, 0.1, 0.2):
        adapted, lora = load(tiny_folder), LoraSettings(r=2)
        add_adapters(adapted.model, lora, seed=0)
        for name, parameter in adapted.model.named_parameters():
            if "lora_B" in name:  # which begins at 0
                parameter.data.fill_(value)
        adapted.hash = weights_hash(adapted.model)
        learner = Learner(adapted.model, TrainingSettings(lora=lora))
        saved.append(put_folder(store, "checkpoint", partial(save, adapted, learner, parent="p0", base=base)))
    return [(store, checkpoint) for checkpoint in saved]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> PipelineConfig:
    return PipelineConfig.model_validate(short_run(tmp_path_factory.mktemp("run")))


def on_servers(stored: Stored, *urls: str) -> ServersPolicy:
    return make_servers_policy(*stored, RolloutSettings(backend="servers", servers=urls), pause_s=0.01)


def play(policy: ServersPolicy, config: PipelineConfig) -> list[Trajectory]:
    return play_desk(policy, config, scenarios=2, group_size=2)  # type: ignore[arg-type]


def distance(stored: Stored, trajectories: list[Trajectory]) -> float:
    """Largest difference between the sampler's log-probabilities and the ones of a version."""
    samples = to_samples(trajectories)
    computed = with_proximal_logprobs(load_policy(*stored).model, samples, precision="fp32", max_tokens=4096)
    return max(
        float(np.abs(sample.proximal_logprobs - sample.sampler_logprobs)[sample.loss_mask].max())  # type: ignore[operator]
        for sample in computed
    )


def test_each_version_is_played_with_its_own_weights(
    server: VLLMServer, versions: list[Stored], config: PipelineConfig
):
    """The first, other weights, and the first again, without the cache of the others. Then three adapters on it, of
    which the engine has room for two, so that the first leave, and come back."""
    first, other, *adapted = versions
    order = [first, other, first, *adapted, adapted[0]]
    before = server.engine.loads
    played = [play(on_servers(stored, server.url), config) for stored in order]
    for stored, trajectories in zip(order, played, strict=True):
        assert distance(stored, trajectories) < 1e-4
    assert distance(versions[1], played[0]) > 1e-3
    assert distance(adapted[1], played[3]) > 1e-3
    assert [t.token_ids.tolist() for t in played[0]] == [t.token_ids.tolist() for t in played[2]]
    assert [t.token_ids.tolist() for t in played[3]] == [t.token_ids.tolist() for t in played[6]]
    assert server.engine.loads == before + 3  # adapters leave the weights as they are
    assert httpx.get(f"{server.url}/health").text == '"vLLM"'


def test_turns_wait_for_new_weights_and_the_weights_for_turns(server: VLLMServer, versions: list[Stored]):
    """Each version is loaded once. Each turn has one version, and turns that begin after the load have the second one,
    although the rollout changes to it later."""
    asyncio.run(_load(on_servers(versions[1], server.url)))
    before = server.engine.loads

    async def run() -> Any:
        first, second = (on_servers(stored, server.url) for stored in versions[:2])
        async with first.sampler(concurrency=8, renderer=Renderer(first.tokenizer)) as sampler:
            sessions = [sampler.open() for _ in range(8)]

            async def converse(seed: int) -> None:
                for prompt in ([1, 2, 3], [4], [5], [6]):
                    sampling = Sampling(temperature=1.0, max_new_tokens=4, seed=seed)
                    await sessions[seed].generate(Prompt(new_ids=prompt), sampling)

            talking = [asyncio.create_task(converse(seed)) for seed in range(8)]
            while not all(session._turns for session in sessions):
                await asyncio.sleep(0.01)
            await sampler.prepare_policy(second)
            await asyncio.sleep(0.3)  # turns that begin now find the version before replaced, and wait
            sampler.replace_policy(second)
            await asyncio.gather(*talking)
            return [[span.policy_hash for span in session.policy_spans] for session in sessions], first, second

    server.engine.turn_s = 0.1
    spans, first, second = asyncio.run(run())
    server.engine.turn_s = 0.0
    assert spans == [[first.hash, second.hash]] * 8
    assert server.engine.loads == before + 2


def test_after_a_load_that_failed_no_turn_is_generated_until_weights_are_loaded(
    server: VLLMServer, versions: list[Stored], config: PipelineConfig
):
    """The engine would have weights of two versions."""
    play(on_servers(versions[1], server.url), config)
    server.engine.breaks = True
    with pytest.raises(ConnectionError, match="no rollout server answers"):
        play(on_servers(versions[0], server.url), config)
    server.engine.breaks = False
    assert distance(versions[1], play(on_servers(versions[1], server.url), config)) < 1e-4


def test_requests_need_a_key_of_the_scope_and_files_need_their_digest(
    server: VLLMServer, keys: dict[str, str], versions: list[Stored]
):
    """Also names of files with a folder, and files of another version than the request states."""
    content = b"{}"
    digest = hashlib.sha256(content).hexdigest()
    with httpx.Client(base_url=server.url) as client:
        for address in (TURNS, WEIGHTS):
            assert client.post(address, json={}).status_code == 401
            assert client.post(address, json={}, headers={"Authorization": f"Bearer {keys['chat']}"}).status_code == 403
        assert client.put(f"{FILES}/{digest}", content=content).status_code == 401
        client.headers["Authorization"] = f"Bearer {keys['rollout']}"
        assert client.put(f"{FILES}/{'0' * 64}", content=content).status_code == 400
        assert client.put(f"{FILES}/..%2Fescape", content=content).status_code in (400, 404)
        assert client.put(f"{FILES}/{digest}", content=content).status_code == 201
        for name in ("../config.json", "/etc/passwd.json", "model.bin"):
            assert client.post(WEIGHTS, json={"version": "0" * 16, "files": {name: digest}}).status_code == 400
        asyncio.run(_load(on_servers(versions[1], server.url)))
        asyncio.run(_load(on_servers(versions[0], server.url)))
        body = on_servers(versions[1], server.url)._weights.request.model_dump()
        refused = client.post(WEIGHTS, json={**body, "version": "0" * 16})
        assert refused.status_code == 400
        assert f"the files hold the weights {body['version']}, not {'0' * 16}" in refused.text


async def _load(policy: ServersPolicy) -> None:
    async with policy.sampler(concurrency=1, renderer=Renderer(policy.tokenizer)):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"worker": ""}, "Start it with --worker-extension-cls grpo.serving.vllm_server.worker.WeightLoader"),
        ({"logprobs_mode": "raw_logprobs"}, "Start it with --logprobs-mode processed_logprobs"),
        ({"lora": False}, "Start it with --enable-lora --max-loras 2 --max-lora-rank N"),
        ({"api_servers": 2}, "Start it with --api-server-count 1"),
        ({"chunked": True, "eager": False}, "Start it with --no-enable-chunked-prefill --enforce-eager"),
    ],
)
def test_a_server_with_other_options_is_refused_with_the_ones_it_needs(
    tiny_folder: Path, keys: dict[str, str], versions: list[Stored], options: dict[str, Any], message: str
):
    """Before any weights are sent."""
    with vllm_server(tiny_folder, **options) as other, pytest.raises(PolicyError, match=message):
        asyncio.run(_load(on_servers(versions[2], other.url)))
