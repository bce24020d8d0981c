"""Continuous rollouts on a real server: turns of several versions, a server that lies, and a run that is repeated."""

from __future__ import annotations

import asyncio
import copy
import gc
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.config.rollout import RolloutSettings
from grpo.config.serving import RolloutServingSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import EnvironmentState, StepResult
from grpo.learner.batch import to_samples
from grpo.learner.checkpoints import load_policy, save_base
from grpo.learner.inference_backend import make_servers_policy
from grpo.learner.logprobs import with_proximal_logprobs
from grpo.messages import Message
from grpo.policy.policy import Prompt, Sampling
from grpo.policy.servers.policy import KEY, ServersPolicy
from grpo.policy.servers.server import WrongWeights
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.chat_template import Renderer
from grpo.rollout.live import LiveRollout
from grpo.rollout.windows import Window
from tests.doubles import put_folder, short_run
from tests.flows.test_continuous import ROLLOUT, TRAINING, Executor
from tests.grpo.policy.servers.relays import Forward, relay
from tests.grpo.rollout.test_continuous import make_rollout, run_to_end, scenarios_of
from tests.grpo.serving.chat_servers import ChatServer, chat_server

pytestmark = pytest.mark.filterwarnings("ignore")
_TURN = Prompt(new_ids=[1, 2, 3]), Sampling(temperature=1.0, max_new_tokens=3, seed=1)
LAST_TURN = 2
"""Turns of the agent before the last one."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatServer]:
    with chat_server(
        tmp_path_factory.mktemp("server"), rollouts=RolloutServingSettings(weights_bytes=2**26)
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def _key(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, server.client("trainer", ("rollout",)).api_key)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    return ArtifactStore(str(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="module")
def checkpoints(store: ArtifactStore, tiny_folder: Path) -> list[Artifact]:
    """Three versions, each with slightly moved weights."""
    policy, saved = load(tiny_folder), []
    for seed in range(3):
        saved.append(put_folder(store, "checkpoint", partial(save_base, policy)))
        model = copy.deepcopy(policy.model)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        policy = TransformersPolicy(model, policy.tokenizer)
    return saved


def _on_servers(store: ArtifactStore, checkpoints: list[Artifact], *urls: str) -> list[ServersPolicy]:
    settings = RolloutSettings(backend="servers", servers=urls)
    return [make_servers_policy(store, checkpoint, settings, pause_s=0.01) for checkpoint in checkpoints]


def _distance(policy: TransformersPolicy, trajectory: Any, part: slice) -> float:
    """Largest difference between the sampler's log-probabilities of a part and the ones of a policy."""
    (sample,) = with_proximal_logprobs(policy.model, to_samples([trajectory]), precision="fp32", max_tokens=999)
    assert sample.proximal_logprobs is not None
    distances = np.abs(sample.proximal_logprobs - sample.sampler_logprobs)
    return float(distances[part][sample.loss_mask[part]].max())


class _Ordered(ConversationEnvironment):
    """The tool of scenario a answers once a turn of the second version was asked for. The tools of e and f answer once
    both episodes of a have ended."""

    def __init__(self) -> None:
        super().__init__(max_turns=3)
        self.has_changed = threading.Event()
        self._ends = 0
        self._has_ended = asyncio.Event()

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        scenario, turn = state.scenario.id, state.turn_count
        if scenario == "a" and turn == 0:
            await asyncio.to_thread(self.has_changed.wait, 240)
        if scenario == "a" and turn == LAST_TURN:
            self._ends += 1
            if self._ends == 2:
                self._has_ended.set()
        if scenario in "ef" and turn == 0:
            await self._has_ended.wait()
        return await super().step(state, action)


def test_turns_that_begin_after_an_update_are_of_its_weights(
    server: ChatServer, store: ArtifactStore, checkpoints: list[Artifact]
):
    """Groups a to d begin with version 0. Window 0 are two of them without a, whose tool waits for the turns of e and f
    with version 1. So a has version 0 in its first turn and version 1 in the others, and is in window 1.

    Each log-probability is the one of the weights of its span, and not of the other ones.
    """
    environment = _Ordered()

    async def watched(body: dict[str, Any], forward: Forward) -> dict[str, Any]:
        if body["version"] == second.hash:
            environment.has_changed.set()
        return await forward(body)

    with relay(server.url, watched) as url, relay(server.url) as other:
        policies = _on_servers(store, checkpoints, url.url, other.url)
        second = policies[1]
        rollout = make_rollout(policies[0], environment, windows=3, max_staleness=1)

        def update(window: Window) -> None:
            if window.index < 2:
                rollout.publish(policies[window.index + 1])

        windows = run_to_end(rollout, update)
    assert [len(window.trajectories) for window in windows] == [4, 4, 4]
    assert not any(window.dropped for window in windows)
    assert "a" in scenarios_of(windows[1].trajectories)
    local = [load_policy(store, checkpoint) for checkpoint in checkpoints]
    for trajectory in windows[1].trajectories:
        if trajectory.scenario_id != "a":
            continue
        assert trajectory.policies == (policies[0].hash, policies[1].hash)
        starts = [turn.start for turn in trajectory.turns if turn.message.role == "assistant"]
        assert [span.start for span in trajectory.policy_spans] == starts[:2]
        before, after = slice(0, starts[1]), slice(starts[1], None)
        assert _distance(local[0], trajectory, before) < 1e-4
        assert _distance(local[1], trajectory, after) < 1e-4
        assert _distance(local[0], trajectory, after) > 1e-3
    assert set(scenarios_of(windows[2].trajectories)) == set("ef")
    assert set(windows[2].staleness) == {1}


def test_servers_get_the_files_of_a_version_whose_checkpoint_was_removed(server: ChatServer, tiny_folder: Path):
    """As `save_total_limit: 1` removes it while servers load it. The server has no file of these weights before."""
    policy = load(tiny_folder)
    with torch.no_grad():
        next(policy.model.parameters()).add_(0.01)
    with TemporaryDirectory() as place:
        store = ArtifactStore(place)
        checkpoint = put_folder(
            store, "checkpoint", partial(save_base, TransformersPolicy(policy.model, policy.tokenizer))
        )
        (version,) = _on_servers(store, [checkpoint], server.url)
        assert store.remove(checkpoint)

    async def turn() -> int:
        async with version.sampler(concurrency=1, renderer=Renderer(version.tokenizer)) as sampler:
            generation = await sampler.open().generate(*_TURN)
            return len(generation.token_ids)

    assert asyncio.run(turn()) >= 1


def test_models_of_versions_without_turns_are_freed(
    server: ChatServer, store: ArtifactStore, checkpoints: list[Artifact]
):
    """A conversation waits for a tool since version 0. Version 0 is freed after the first turn of version 1.

    Version 2 may be prepared before version 1 is in use.
    """

    async def check() -> None:
        first, second, third = _on_servers(store, checkpoints, server.url)
        model = _hold_only(first)
        async with first.sampler(concurrency=2, renderer=Renderer(first.tokenizer)) as sampler:
            del first
            waiting, other = sampler.open(), sampler.open()
            await waiting.generate(*_TURN)
            await sampler.prepare_policy(second)
            await sampler.prepare_policy(third)
            gc.collect()
            assert model() is not None
            sampler.replace_policy(second)
            await other.generate(*_TURN)
            gc.collect()
            assert model() is None
            sampler.replace_policy(third)
            await waiting.generate(*_TURN)
            assert [span.policy_hash for span in waiting.policy_spans][1:] == [third.hash]

    asyncio.run(check())


def _hold_only(policy: ServersPolicy) -> weakref.ref[Any]:
    """Reference to a check of this policy that nothing else refers to. The model cache holds the models."""
    check = partial(policy._check)
    policy._check = check
    return weakref.ref(check)


def test_a_server_whose_weights_change_later_ends_the_rollout(
    server: ChatServer, store: ArtifactStore, checkpoints: list[Artifact]
):
    """Turns after the first of each episode are wrong, and the 16th is recomputed. The stage can then begin again."""
    turns = 0

    async def wrong_later(body: dict[str, Any], forward: Forward) -> dict[str, Any]:
        nonlocal turns
        turns += 1
        reply = await forward(body)
        return reply if turns <= 8 else {**reply, "logprobs": [logprob - 0.5 for logprob in reply["logprobs"]]}

    with relay(server.url, wrong_later) as liar:
        policies = _on_servers(store, checkpoints, liar.url)
        rollout = make_rollout(policies[0], ConversationEnvironment(max_turns=3), windows=2, max_staleness=1)
        live = LiveRollout(rollout, nullcontext())
        with pytest.raises(
            WrongWeights,
            match=r"differ by up to 0\.5 nats .*\. Episodes that were not trained on are collected again",
        ):
            deque(iter(live.take, None))


def test_a_run_on_servers_is_repeated_from_its_windows(server: ChatServer, tmp_path: Path):
    """All windows are trained on, and the second run computes nothing."""
    rollout = {**ROLLOUT, "mode": "continuous", "max_staleness": 1, "backend": "servers", "servers": [server.url]}
    document = short_run(tmp_path, training={**TRAINING, "iterations": 2}, rollout=rollout)
    config = PipelineConfig.model_validate(document)
    first, second = Executor(), Executor()
    steps = first.train(config)
    assert steps[0].iteration.staleness_max == 0
    assert len({step.policy.policy for step in steps}) == 2
    assert [step.policy for step in second.train(config)] == [step.policy for step in steps]
    assert "rollout_window" in first.computed
    assert second.computed == []
