"""Rollouts of the shipped model on a real server with relays before it, which are full, slow, killed, or lie."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.responses import Response

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.config.rollout import RolloutSettings
from grpo.config.serving import RolloutServingSettings
from grpo.errors import ConfigError, PolicyError
from grpo.learner.batch import to_samples
from grpo.learner.checkpoints import load_policy, save_base
from grpo.learner.inference_backend import make_servers_policy
from grpo.learner.logprobs import with_proximal_logprobs
from grpo.policy.policy import Prompt, Sampling
from grpo.policy.servers.policy import KEY, ServersPolicy
from grpo.policy.servers.pool import ServerPool
from grpo.policy.servers.server import WrongWeights
from grpo.policy.transformers.model import TransformersPolicy
from grpo.renderers.chat_template import Renderer
from grpo.trajectories import Trajectory
from tests.doubles import play_desk, put_folder, short_run
from tests.grpo.learner.conftest import perturbed
from tests.grpo.policy.servers.relays import Forward, Relay, relay
from tests.grpo.serving.chat_servers import ChatServer, chat_server, load_clerk
from tests.ports import own_port

# A relay that dies drops connections in the middle of an answer, so that some of its sockets are collected unclosed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
SCENARIOS, GROUP = 5, 2
Stored = tuple[ArtifactStore, Artifact]


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
def clerk_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    store = ArtifactStore(str(tmp_path_factory.mktemp("clerk")))
    return store, put_folder(store, "checkpoint", partial(save_base, load_clerk()))


@pytest.fixture(scope="module")
def other_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """The clerk with a little noise in each weight."""
    store, clerk = ArtifactStore(str(tmp_path_factory.mktemp("other"))), load_clerk()
    other = TransformersPolicy(perturbed(clerk.model), clerk.tokenizer)
    return store, put_folder(store, "checkpoint", partial(save_base, other))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> PipelineConfig:
    return PipelineConfig.model_validate(short_run(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def in_process(clerk_checkpoint: Stored, config: PipelineConfig) -> list[Trajectory]:
    return play(load_policy(*clerk_checkpoint), config)


def on_servers(
    stored: Stored, *urls: str, hedge_s: float = 30.0, pause_s: float = 0.01, tries: int = 5
) -> ServersPolicy:
    settings = RolloutSettings(backend="servers", servers=urls, hedge_s=hedge_s)
    return make_servers_policy(*stored, settings, pause_s=pause_s, tries=tries)


def play(policy: TransformersPolicy | ServersPolicy, config: PipelineConfig) -> list[Trajectory]:
    return play_desk(policy, config, scenarios=SCENARIOS, group_size=GROUP)  # type: ignore[arg-type]


def assert_equal(played: list[Trajectory], expected: list[Trajectory]) -> float:
    """The same episodes with the same tokens. Returns the largest difference of their log-probabilities."""
    assert [(t.scenario_id, t.sample, t.stop) for t in played] == [(t.scenario_id, t.sample, t.stop) for t in expected]
    for mine, theirs in zip(played, expected, strict=True):
        assert mine.token_ids.tolist() == theirs.token_ids.tolist()
        assert mine.turns == theirs.turns
    return max(
        float(np.abs(mine.sampler_logprobs - theirs.sampler_logprobs).max())
        for mine, theirs in zip(played, expected, strict=True)
    )


def conversations(of: Relay) -> set[int]:
    """Seeds of the episodes of the turns that a relay was asked for."""
    return {body["seed"] for body in of.turns}


def test_a_rollout_on_servers_is_the_rollout_in_this_process(
    server: ChatServer, clerk_checkpoint: Stored, config: PipelineConfig, in_process: list[Trajectory]
):
    """The same tokens. Log-probabilities differ by the order of sums, less than an update on them tolerates."""
    with relay(server.url) as left, relay(server.url) as right:
        played = play(on_servers(clerk_checkpoint, left.url, right.url), config)
    assert assert_equal(played, in_process) < 2e-5
    samples = to_samples(played)
    model = load_policy(*clerk_checkpoint).model
    for sample in with_proximal_logprobs(model, samples, precision="fp32", max_tokens=4096):
        assert sample.proximal_logprobs is not None
        ratios = np.exp(sample.proximal_logprobs - sample.sampler_logprobs)[sample.loss_mask]
        assert np.abs(ratios - 1).mean() < config.training.ratio_tolerance
    by_server = [conversations(left), conversations(right)]
    assert {trajectory.seed for trajectory in played} == by_server[0] | by_server[1]
    assert not by_server[0] & by_server[1]  # each stays on its server
    assert [len(seeds) for seeds in by_server] == [SCENARIOS * GROUP // 2] * 2
    turns = defaultdict[int, list[int]](list)
    for body in (*left.turns, *right.turns):
        turns[body["seed"]].append(body["turn"])
    assert all(numbers == list(range(len(numbers))) for numbers in turns.values())


def test_branches_on_servers_are_the_branches_in_this_process(
    server: ChatServer, clerk_checkpoint: Stored, config: PipelineConfig
):
    """The same tokens, and each branch stays on the server of its root, which has the keys and values."""

    def play_trees(policy: TransformersPolicy | ServersPolicy) -> list[Trajectory]:
        return play_desk(policy, config, scenarios=SCENARIOS, group_size=4, trees=2)  # type: ignore[arg-type]

    expected = play_trees(load_policy(*clerk_checkpoint))
    with relay(server.url) as left, relay(server.url) as right:
        played = play_trees(on_servers(clerk_checkpoint, left.url, right.url))
    assert assert_equal(played, expected) < 2e-5
    assert [t.branch for t in played] == [t.branch for t in expected]
    seeds = {(t.scenario_id, t.sample): t.seed for t in played}
    branches = [t for t in played if t.branch is not None]
    assert branches
    for branch in branches:
        assert branch.branch is not None
        root = seeds[branch.scenario_id, branch.branch.sample]
        assert (branch.seed in conversations(left)) == (root in conversations(left))


def test_every_episode_is_complete_when_a_server_is_killed_in_mid_episode(
    server: ChatServer, clerk_checkpoint: Stored, config: PipelineConfig, in_process: list[Trajectory]
):
    """A second turn is lost; its conversation goes on at the other server, with the tokens that it would have had."""

    async def killed(body: dict[str, Any], forward: Forward) -> dict[str, Any]:
        reply = await forward(body)
        if body["turn"] == 1:
            dying.die()
        return reply

    with relay(server.url, killed) as dying, relay(server.url) as other:
        played = play(on_servers(clerk_checkpoint, dying.url, other.url), config)
    assert_equal(played, in_process)
    moved = conversations(dying) & conversations(other)
    assert moved
    assert max(body["turn"] for body in other.turns if body["seed"] in moved) > 0


def test_a_full_server_is_asked_again_when_it_says_so(
    server: ChatServer, clerk_checkpoint: Stored, config: PipelineConfig, in_process: list[Trajectory]
):
    """Also if it is the only one: 503 and 429 end no turn."""
    statuses = iter([503, 429, 503, 429])

    async def full(body: dict[str, Any], forward: Forward) -> dict[str, Any] | Response:
        status = next(statuses, None)
        if status is None:
            return await forward(body)
        return Response("{}", status, headers={"retry-after-ms": "5"})

    with relay(server.url, full) as only:
        assert_equal(play(on_servers(clerk_checkpoint, only.url, tries=1), config), in_process)
    assert next(statuses, None) is None


def test_a_turn_that_hangs_is_answered_by_another_server(
    server: ChatServer, clerk_checkpoint: Stored, config: PipelineConfig, in_process: list[Trajectory]
):
    """Its conversations move after `hedge_s`."""

    async def hang(body: dict[str, Any], forward: Forward) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    with relay(server.url, hang) as slow, relay(server.url) as other:
        played = play(on_servers(clerk_checkpoint, slow.url, other.url, hedge_s=0.5), config)
    assert_equal(played, in_process)
    assert conversations(slow) <= conversations(other)
    assert slow.turns


def test_a_reply_under_another_version_is_not_used(
    server: ChatServer,
    clerk_checkpoint: Stored,
    config: PipelineConfig,
    in_process: list[Trajectory],
    caplog: pytest.LogCaptureFixture,
):
    """The server is left out, with one line that names it."""

    async def mislabelled(body: dict[str, Any], forward: Forward) -> dict[str, Any]:
        return {**await forward(body), "version": "0" * 16}

    with relay(server.url, mislabelled) as liar, relay(server.url) as other, caplog.at_level(logging.WARNING):
        assert_equal(play(on_servers(clerk_checkpoint, liar.url, other.url), config), in_process)
    (line,) = [record.getMessage() for record in caplog.records if "rollout server" in record.getMessage()]
    version = load_policy(*clerk_checkpoint).hash
    assert line == (
        f"rollout server {liar.url}: it replied with weights {'0' * 16} to a turn for {version}. It is left out, and "
        "the other servers generate its turns"
    )


def test_a_reply_is_read_up_to_a_bound(
    server: ChatServer,
    clerk_checkpoint: Stored,
    config: PipelineConfig,
    in_process: list[Trajectory],
    caplog: pytest.LogCaptureFixture,
):
    """A server that sends more than 32 MiB is left out."""

    async def long(body: dict[str, Any], forward: Forward) -> Response:
        return Response(b" " * (2**25 + 1))

    with relay(server.url, long) as liar, relay(server.url) as other, caplog.at_level(logging.WARNING):
        assert_equal(play(on_servers(clerk_checkpoint, liar.url, other.url), config), in_process)
    assert f"{liar.url}: its reply has more than 32 MiB" in caplog.text


def with_weights_of(other: Stored, after: int = 0) -> Any:
    """Answer turns with the weights of another checkpoint under the version that was asked for, after some turns."""
    version, count = load_policy(*other).hash, iter(range(10**6))

    async def answer(body: dict[str, Any], forward: Forward) -> dict[str, Any]:
        if next(count) < after:
            return await forward(body)
        return {**await forward({**body, "version": version}), "version": body["version"]}

    return answer


@pytest.fixture
def _other_is_loaded(server: ChatServer, other_checkpoint: Stored, clerk_checkpoint: Stored) -> None:
    """Both versions are loaded."""

    async def load() -> None:
        for stored in (clerk_checkpoint, other_checkpoint):
            policy = on_servers(stored, server.url)
            async with policy.sampler(concurrency=1, renderer=Renderer(policy.tokenizer)):
                pass

    asyncio.run(load())


@pytest.mark.usefixtures("_other_is_loaded")
def test_a_server_with_other_weights_than_it_states_is_left_out_before_a_turn_of_it_is_used(
    server: ChatServer,
    clerk_checkpoint: Stored,
    other_checkpoint: Stored,
    config: PipelineConfig,
    in_process: list[Trajectory],
    caplog: pytest.LogCaptureFixture,
):
    """By recomputed log-probabilities: the version that it states is the right one."""
    with (
        relay(server.url, with_weights_of(other_checkpoint)) as liar,
        relay(server.url) as other,
        caplog.at_level(logging.WARNING),
    ):
        assert_equal(play(on_servers(clerk_checkpoint, liar.url, other.url), config), in_process)
    (line,) = [record.getMessage() for record in caplog.records if "rollout server" in record.getMessage()]
    assert line.startswith(
        f"rollout server {liar.url}: it says that it has weights {load_policy(*clerk_checkpoint).hash}"
    )
    assert "tokens differ by up to" in line


@pytest.mark.usefixtures("_other_is_loaded")
def test_a_server_whose_weights_change_later_ends_the_rollout(
    server: ChatServer, clerk_checkpoint: Stored, other_checkpoint: Stored, config: PipelineConfig
):
    """The 16th turn is recomputed. The error is a transient one: the stage collects again, and trusts no server yet."""
    with (
        relay(server.url, with_weights_of(other_checkpoint, after=SCENARIOS * GROUP)) as liar,
        pytest.raises(
            WrongWeights,
            match=rf"rollout server {liar.url}: it says .*\. Episodes that were not trained on are collected again",
        ),
    ):
        play(on_servers(clerk_checkpoint, liar.url), config)
    assert len(liar.turns) >= 16


def test_turns_in_progress_end_with_the_transient_error_if_a_later_turn_was_wrong():
    """Whichever of them sees first that the server is refused."""
    wrong = "rollout server a: it says that it has other weights. Episodes that were not trained on are collected again"
    server: Any = SimpleNamespace(place="rollout server a", is_refused=True, wrong_later=wrong)
    with pytest.raises(WrongWeights, match=wrong):
        ServerPool([server], version="v", hedge_s=1.0, silent_s=3.0, pause_s=1.0, tries=1)._check_any_is_left()


@pytest.mark.usefixtures("_other_is_loaded")
def test_if_all_servers_lie_the_error_names_each(
    server: ChatServer, clerk_checkpoint: Stored, other_checkpoint: Stored, config: PipelineConfig
):
    """It is permanent, because a second try would end in the same way."""
    with (
        relay(server.url, with_weights_of(other_checkpoint)) as left,
        relay(server.url, with_weights_of(other_checkpoint)) as right,
        pytest.raises(PolicyError, match="no rollout server can be used") as caught,
    ):
        play(on_servers(clerk_checkpoint, left.url, right.url), config)
    assert left.url in str(caught.value)
    assert right.url in str(caught.value)


def test_if_all_servers_are_gone_the_error_is_one_sentence(
    server: ChatServer, clerk_checkpoint: Stored, config: PipelineConfig
):
    """It is transient: the stage is tried again when they have had time to start."""

    async def die(body: dict[str, Any], forward: Forward) -> dict[str, Any]:
        left.die()
        return {}

    right = f"http://127.0.0.1:{own_port()}"
    with relay(server.url, die) as left, pytest.raises(ConnectionError) as caught:
        play(on_servers(clerk_checkpoint, left.url, right, tries=3), config)
    expected = "it cannot be reached (ConnectError)"
    assert str(caught.value) == (
        f"no rollout server answers: rollout server {left.url}: {expected}; rollout server {right}: {expected}. "
        "Start them, or correct rollout.servers"
    )


def test_a_server_that_has_lost_the_weights_gets_them_again(
    server: ChatServer, clerk_checkpoint: Stored, config: PipelineConfig, in_process: list[Trajectory]
):
    """The engine process of the version is killed in mid-rollout: the server loads the weights again."""
    killed: list[int] = []

    async def kill(body: dict[str, Any], forward: Forward) -> dict[str, Any] | Response:
        if len(only.turns) == 7:
            rollouts = [v for v in server.service.rollouts.versions.loaded if v.served.version == body["version"]]
            killed.append(rollouts[-1].served.policy.pid)  # type: ignore[attr-defined]
            os.kill(killed[0], signal.SIGKILL)
        try:
            return await forward(body)
        except httpx.HTTPStatusError as error:
            return Response(error.response.content, error.response.status_code)

    with relay(server.url, kill) as only:
        assert_equal(play(on_servers(clerk_checkpoint, only.url, pause_s=0.1), config), in_process)
    assert killed


def test_a_server_without_rollouts_or_with_another_key_is_refused_by_name(
    clerk_checkpoint: Stored, server: ChatServer, config: PipelineConfig, monkeypatch: pytest.MonkeyPatch
):
    """403 of a key without the scope."""
    monkeypatch.setenv(KEY, server.client("chatter", ("chat",)).api_key)
    with pytest.raises(PolicyError, match=r"HTTP 403: this address needs the scope rollout\. Key chatter has chat"):
        play(on_servers(clerk_checkpoint, server.url), config)
    monkeypatch.delenv(KEY)
    with pytest.raises(PolicyError, match="set GRPO_ROLLOUT_KEY to a key of the servers"):
        on_servers(clerk_checkpoint, server.url)


def test_filtered_sampling_is_refused(server: ChatServer, clerk_checkpoint: Stored):
    """Its log-probabilities could not be trained on."""

    async def sample(policy: ServersPolicy, sampling: Sampling) -> None:
        async with policy.sampler(concurrency=1, renderer=Renderer(policy.tokenizer)) as sampler:
            await sampler.open().generate(Prompt(new_ids=[1]), sampling)

    sampling = Sampling(temperature=1.0, max_new_tokens=2, seed=1, top_p=0.5)
    with pytest.raises(ConfigError, match="rollout servers support neither top_p"):
        asyncio.run(sample(on_servers(clerk_checkpoint, server.url), sampling))


def test_adapters_are_sent_with_their_base(
    server: ChatServer, clerk_checkpoint: Stored, config: PipelineConfig, tmp_path: Path
):
    """The base is uploaded once; the hash of the adapted model is that of the server."""
    from grpo.config.training import LoraSettings, TrainingSettings
    from grpo.learner.checkpoints import save
    from grpo.learner.learner import Learner
    from grpo.policy.transformers.adapters import add_adapters
    from grpo.policy.transformers.model import weights_hash

    store, base = clerk_checkpoint
    policy, lora = load_clerk(), LoraSettings(r=2)
    add_adapters(policy.model, lora, seed=0)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:  # which begins at 0
            parameter.data.fill_(0.01)
    policy.hash = weights_hash(policy.model)
    learner = Learner(policy.model, TrainingSettings(lora=lora))
    adapted = put_folder(store, "checkpoint", lambda folder: save(policy, learner, folder, parent="p0", base=base))
    stored = store, adapted
    assert_equal(play(on_servers(stored, server.url), config), play(load_policy(*stored), config))
