"""Rollouts on a real `vllm serve` on loopback: weights that are replaced in place, turns, attacks, a killed server."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from starlette.responses import Response

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.rollout import RolloutSettings
from grpo.config.training import LoraSettings, TrainingSettings
from grpo.learner.checkpoints import load_policy, save, save_base
from grpo.learner.inference_backend import make_servers_policy
from grpo.learner.learner import Learner
from grpo.policy.policy import Generation, Prompt, Sampling
from grpo.policy.servers.policy import KEY, ServersPolicy
from grpo.policy.servers.protocol import FILES, TURNS, WEIGHTS
from grpo.policy.transformers.adapters import add_adapters
from grpo.policy.transformers.model import TransformersPolicy, load, weights_hash
from grpo.renderers.chat_template import Renderer
from grpo.serving.access.keys import KeyStore
from grpo.trajectories import Trajectory
from tests.doubles import play_desk, put_folder
from tests.grpo.policy.servers.relays import Forward, relay
from tests.vllm.engine import MARKS, desk_config, largest_error
from tests.vllm.models import shifted
from tests.vllm.servers import ROLLOUTS, Server, vllm_server

pytestmark = MARKS

PROMPTS = ([5, 20, 31, 44], [7], [9], [7])
Stored = tuple[ArtifactStore, Artifact]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def keys(home: Path) -> dict[str, str]:
    store = KeyStore(home / "keys.json")
    return {scope: store.create(scope, [scope]) for scope in ("rollout", "chat")}


@pytest.fixture(scope="module")
def server(clerk: Path, home: Path, keys: dict[str, str]) -> Iterator[Server]:
    with vllm_server(clerk, home, *ROLLOUTS) as running:
        yield running


@pytest.fixture(autouse=True)
def _key(keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, keys["rollout"])


@pytest.fixture(scope="module")
def versions(clerk: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Stored]:
    """The clerk, the clerk with noise in each weight, and three adapters on the clerk."""
    place = tmp_path_factory.mktemp("versions")
    shifted(clerk, place / "shifted", std=0.03, seed=1)
    store = ArtifactStore(str(place / "store"))
    saved = [put_folder(store, "checkpoint", partial(save_base, load(folder))) for folder in (clerk, place / "shifted")]
    for scale in (0.01, 0.02, 0.03):
        policy, lora = load(clerk), LoraSettings(r=4)
        add_adapters(policy.model, lora, seed=0)
        generator = torch.Generator().manual_seed(1)
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:  # which begins at 0
                parameter.data.copy_(scale * torch.randn(parameter.shape, generator=generator))
        policy.hash = weights_hash(policy.model)
        learner = Learner(policy.model, TrainingSettings(lora=lora))
        saved.append(put_folder(store, "checkpoint", partial(save, policy, learner, parent="p0", base=saved[0])))
    return [(store, checkpoint) for checkpoint in saved]


def on_servers(stored: Stored, *urls: str) -> ServersPolicy:
    return make_servers_policy(*stored, RolloutSettings(backend="servers", servers=urls), pause_s=0.05)


def episodes(policy: ServersPolicy, scenarios: int = 4) -> list[Trajectory]:
    return play_desk(policy, desk_config(), scenarios=scenarios, group_size=4)  # type: ignore[arg-type]


def test_each_version_is_played_with_its_own_weights(server: Server, versions: list[Stored]):
    """First, second and first version, then adapters on the first, of which the engine has room for two.

    The head of the model shares the weight of the embedding, which vLLM does not pack again by itself.
    """
    first, second, *adapted = versions
    order = [first, second, first, *adapted, adapted[0]]
    assert load_policy(*first).model.config.tie_word_embeddings
    played = [episodes(on_servers(stored, server.url)) for stored in order]
    for stored, trajectories in zip(order, played, strict=True):
        policy = load_policy(*stored)
        error, tokens = largest_error(trajectories, policy)
        print(f"{policy.hash}: largest difference {error:.1e} over {tokens} tokens")
        assert tokens > 200
        assert error < 1e-4
        assert {t.policy_hash for t in trajectories} == {policy.hash}
    ids = [[t.token_ids.tolist() for t in trajectories] for trajectories in played]
    assert ids[0] == ids[2] != ids[1]
    assert ids[3] == ids[6]
    assert largest_error(played[0], load_policy(*second))[0] > 0.1


def test_a_turn_in_progress_ends_with_its_version_and_one_after_the_replacement_has_the_next(
    server: Server, versions: list[Stored]
):
    """Sixteen conversations, whose turns begin before, during and after the replacement. Each span is recomputed."""
    first, second, *_ = versions
    policies = {policy.hash: policy for policy in (load_policy(*first), load_policy(*second))}

    async def run() -> list[tuple[Any, list[Generation]]]:
        policy, successor = on_servers(first, server.url), on_servers(second, server.url)
        async with policy.sampler(concurrency=16, renderer=Renderer(policy.tokenizer)) as sampler:
            turns = 0

            async def converse(seed: int) -> tuple[Any, list[Generation]]:
                nonlocal turns
                session, replies = sampler.open(), []
                for prompt in PROMPTS:
                    sampling = Sampling(temperature=1.5, max_new_tokens=30, seed=seed)
                    replies.append(await session.generate(Prompt(new_ids=prompt), sampling))
                    turns += 1
                return session, replies

            talking = [asyncio.create_task(converse(seed)) for seed in range(16)]
            while turns < 8:
                await asyncio.sleep(0.01)
            await sampler.prepare_policy(successor)
            sampler.replace_policy(successor)
            return list(await asyncio.gather(*talking))

    seen = set()
    for session, replies in asyncio.run(run()):
        start = 0
        for prompt, reply in zip(PROMPTS, replies, strict=True):
            start += len(prompt)
            version = [span.policy_hash for span in session.policy_spans if span.start <= start][-1]
            assert _distance(policies[version], session, start, reply) < 1e-4
            start += len(reply.token_ids)
        seen.add(tuple(span.policy_hash for span in session.policy_spans))
    assert tuple(policies) in seen


def _distance(policy: TransformersPolicy, session: Any, start: int, reply: Generation) -> float:
    """Largest difference of the log-probabilities of a turn from the ones of a policy."""
    ids = torch.tensor([session._ids[: start + len(reply.token_ids)]])
    with torch.no_grad():
        logprobs = torch.log_softmax(policy.model(input_ids=ids).logits[0].float() / 1.5, dim=-1)
    assert reply.logprobs is not None
    computed = [float(logprobs[start + k - 1, token]) for k, token in enumerate(reply.token_ids)]
    return max(abs(a - b) for a, b in zip(computed, reply.logprobs, strict=True))


def test_files_and_versions_are_refused_unless_they_are_what_they_are_called(
    server: Server, keys: dict[str, str], versions: list[Stored]
):
    """No key, another scope, another digest, a path, a pickle, another version, and vLLM's own routes of weights."""
    first, second, *_ = versions
    content = b"not what its name says"
    digest = hashlib.sha256(content).hexdigest()
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for headers, status in (({}, 401), ({"Authorization": "Bearer no"}, 401)):
            assert client.put(f"{FILES}/{digest}", content=content, headers=headers).status_code == status
            assert client.post(WEIGHTS, json={}, headers=headers).status_code == status
            assert client.post(TURNS, json={}, headers=headers).status_code == status
        chat = {"Authorization": f"Bearer {keys['chat']}"}
        assert client.post(WEIGHTS, json={}, headers=chat).status_code == 403
        client.headers["Authorization"] = f"Bearer {keys['rollout']}"
        assert client.put(f"{FILES}/{'0' * 64}", content=content).status_code == 400
        for name in ("../../escape", "..%2F..%2Fescape", "%2Fetc%2Fpasswd"):
            assert client.put(f"{FILES}/{name}", content=content).status_code in (400, 404)
        assert client.put(f"{FILES}/{digest}", content=content).status_code == 201
        version = load_policy(*first).hash
        for name in ("../model.safetensors", "/etc/passwd", "pytorch_model.bin", ".model.safetensors"):
            refused = client.post(WEIGHTS, json={"version": version, "files": {name: digest}})
            assert refused.status_code == 400, name
        missing = client.post(WEIGHTS, json={"version": "0" * 16, "files": {"model.safetensors": "1" * 64}})
        assert missing.json() == {"version": None, "missing": ["1" * 64], "max_context": None}
        other = on_servers(second, server.url)._weights.request
        episodes(on_servers(first, server.url), scenarios=1)
        episodes(on_servers(second, server.url), scenarios=1)
        renamed = client.post(WEIGHTS, json={**other.model_dump(), "version": "0" * 16})
        assert renamed.status_code == 400
        assert f"the files hold the weights {other.version}, not {'0' * 16}" in renamed.text
        broken = client.post(WEIGHTS, json={"version": "0" * 16, "files": {**other.files, "config.json": digest}})
        assert broken.status_code == 400
        for route in ("/pause", "/collective_rpc", "/update_weights", "/start_weight_update", "/resume"):
            assert client.post(route, json={"method": "load_rollout_weights"}).status_code == 404, route
    error, _ = largest_error(episodes(on_servers(second, server.url), scenarios=1), load_policy(*second))
    assert error < 1e-4


def test_every_episode_is_complete_when_vllm_is_killed_in_mid_episode(
    server: Server, clerk: Path, versions: list[Stored], home: Path, tmp_path: Path
):
    """Server and engine end at once. Their conversations go on at the other server, with the same tokens."""
    (tmp_path / "keys.json").write_bytes((home / "keys.json").read_bytes())
    (tmp_path / "keys.json").chmod(0o600)
    first, *_ = versions
    expected = episodes(on_servers(first, server.url))

    async def kill(body: dict[str, Any], forward: Forward) -> dict[str, Any] | Response:
        if body["turn"] == 1 and dying.process.poll() is None:
            await asyncio.to_thread(dying.kill)
        try:
            return await forward(body)
        except httpx.HTTPError:
            return Response("{}", 502)

    with vllm_server(clerk, tmp_path, *ROLLOUTS) as dying, relay(dying.url, kill) as before, relay(server.url) as other:
        episodes(on_servers(first, dying.url), scenarios=1)  # so that it has the weights as soon as the other one
        played = episodes(on_servers(first, before.url, other.url))
        assert dying.process.poll() is not None
    moved = {body["seed"] for body in before.turns} & {body["seed"] for body in other.turns}
    assert moved
    assert [t.token_ids.tolist() for t in played] == [t.token_ids.tolist() for t in expected]
    assert largest_error(played, load_policy(*first))[0] < 1e-4
