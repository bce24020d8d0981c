"""Branching rollouts: episodes that begin with the tokens and the world of another one of their group."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from grpo.config.rollout import RolloutSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import Environment, EnvironmentState, StepResult
from grpo.errors import ConfigError
from grpo.messages import Message
from grpo.policy.policy import Policy
from grpo.policy.scripted import ScriptedPolicy
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.policy.transformers.sampling.slot_sampler import SlotSampler
from grpo.renderers.chat_template import Renderer
from grpo.rollout.branching import trees_of
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.trajectories import Trajectory

SCENARIOS = [Scenario(id=f"s{k}", user_responses=("hello", f"order {k}", "more", "bye")) for k in range(3)]


class Diary(ConversationEnvironment):
    """A world that each step changes in place: the replies so far. Its digest is their number and the last one."""

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        state = await super().reset(scenario, seed=seed)
        return state.after(world={"replies": []})

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        state.world["replies"].append(action.content)
        return await super().step(state, action)

    def state_digest(self, state: EnvironmentState) -> str:
        return f"{len(state.world['replies'])} {state.world['replies'][-1:]}"


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


def _collect(
    policy: Policy,
    renderer: Renderer,
    world: ConversationEnvironment | None = None,
    *,
    group_size: int = 6,
    trees: int | None = 2,
    **changes: object,
) -> list[Trajectory]:
    plan = {
        "max_new_tokens": 5,
        "on_truncation": "continue",
        "max_context": 300,
        "concurrency": 64,
        "error_budget": 0.0,
        **changes,
    }
    return collect(
        SCENARIOS,
        policy,
        world or Diary(max_turns=4),
        renderer,
        RolloutSettings.model_validate(plan),
        group_size=group_size,
        temperature=1.0,
        run_seed=1,
        iteration=0,
        trees=trees,
    )


@pytest.fixture(scope="module")
def renderer(policy: TransformersPolicy) -> Renderer:
    return Renderer(policy.tokenizer)


@pytest.fixture(scope="module")
def episodes(policy: TransformersPolicy, renderer: Renderer) -> list[Trajectory]:
    return _collect(policy, renderer)


def _groups(episodes: list[Trajectory]) -> Iterator[dict[int, Trajectory]]:
    for scenario in SCENARIOS:
        yield {episode.sample: episode for episode in episodes if episode.scenario_id == scenario.id}


def test_samples_are_dealt_to_the_trees_in_turn():
    assert trees_of(6, 2) == [(0, 2, 4), (1, 3, 5)]
    assert trees_of(5, 3) == [(0, 3), (1, 4), (2,)]
    assert trees_of(2, 2) == [(0,), (1,)]


def test_a_branch_begins_with_the_tokens_of_its_root(episodes: list[Trajectory]):
    """Up to a turn after the first: same ids, mask, log-probabilities and states. Then the branch has its own."""
    assert [(t.scenario_id, t.sample) for t in episodes] == [(s.id, k) for s in SCENARIOS for k in range(6)]
    turns = []
    for group in _groups(episodes):
        for sample, episode in group.items():
            if sample < 2:
                assert episode.branch is None
                assert episode.own_turns == episode.turns
                continue
            assert episode.branch is not None
            assert episode.branch.sample == sample % 2
            root, stop = group[sample % 2], episode.branch.tokens
            shared = [turn for turn in episode.turns if turn.stop <= stop]
            assert shared == [turn for turn in root.turns if turn.stop <= stop]
            assert (shared[-1].message.role, shared[-1].stop) == ("assistant", stop)
            for name in ("token_ids", "loss_mask", "sampler_logprobs"):
                assert np.array_equal(getattr(episode, name)[:stop], getattr(root, name)[:stop])
            assert (episode.own_start, (*shared, *episode.own_turns)) == (stop, episode.turns)
            turns.append(count := sum(turn.message.role == "assistant" for turn in shared))
            assert episode.turn_states[: count + 1] == root.turn_states[: count + 1]
    assert set(turns) == {1, 2, 3}
    assert any(
        not np.array_equal(e.token_ids, g[e.sample % 2].token_ids) for g in _groups(episodes) for e in g.values()
    )


def test_each_episode_has_a_world_of_its_own(episodes: list[Trajectory]):
    """The environment changes its world in place, and still the world of each episode has the replies of that one."""
    for episode in episodes:
        replies = [turn.message.content for turn in episode.turns if turn.message.role == "assistant"]
        expected = [f"{count} {replies[:count][-1:]}" for count in range(len(replies))]
        assert list(episode.turn_states) == expected


def test_log_probabilities_are_those_of_the_whole_conversation(policy: TransformersPolicy, episodes: list[Trajectory]):
    """The keys and values that a branch continues give the same as reading all of its tokens in one pass."""
    for episode in episodes:
        ids = torch.tensor(episode.token_ids, dtype=torch.long)[None]
        with torch.inference_mode():
            logits = policy.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
        logprobs = torch.log_softmax(logits.float(), dim=-1)[:-1].gather(1, ids[0, 1:, None])[:, 0].numpy()
        mask = episode.loss_mask[1:]
        assert np.abs(logprobs[mask] - episode.sampler_logprobs[1:][mask]).max() < 1e-4


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_branches_do_not_depend_on_the_concurrency(
    policy: TransformersPolicy, renderer: Renderer, episodes: list[Trajectory], concurrency: int
):
    """Also if fewer conversations fit than a tree has episodes, so that the KV cache has fewer slots."""
    for episode, expected in zip(_collect(policy, renderer, concurrency=concurrency), episodes, strict=True):
        assert np.array_equal(episode.token_ids, expected.token_ids)
        assert episode.branch == expected.branch


def test_what_a_branch_shares_is_not_read_again(
    policy: TransformersPolicy, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
):
    """One conversation at a time: the model reads as many tokens as the episodes have that they do not share.

    The last token of an episode is generated, and nothing follows it, so that it is not read.
    """
    read: list[int] = []
    make = SlotSampler.__aexit__

    async def count(sampler: SlotSampler, *exc: object) -> None:
        read.append(sampler.tokens_processed)
        await make(sampler, *exc)

    monkeypatch.setattr(SlotSampler, "__aexit__", count)
    episodes = _collect(policy, renderer, concurrency=1)
    own = [len(e.token_ids) - (0 if e.branch is None else e.branch.tokens) for e in episodes]
    last = [0 if e.branch is None else 1 for e in episodes]  # the token before the turn, which its root had not read …
    assert read[0] == sum(own) - len(episodes) + sum(last)


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_a_turn_never_waits_for_branches_that_have_not_begun(
    policy: TransformersPolicy, renderer: Renderer, monkeypatch: pytest.MonkeyPatch, concurrency: int
):
    """An episode that has begun has a place in the batch, so that no timeout of a turn counts time in a queue."""
    waiting: list[int] = []
    step = SlotSampler._step

    def count(sampler: SlotSampler) -> None:
        waiting.append(sampler.waiting)
        step(sampler)

    monkeypatch.setattr(SlotSampler, "_step", count)
    _collect(policy, renderer, concurrency=concurrency)
    assert waiting
    assert max(waiting) == 0


class Breaking(Diary):
    """The third step of the first sample of each scenario fails."""

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        if len(state.world["replies"]) == 2 and not self.failed & {state.scenario.id}:
            self.failed.add(state.scenario.id)
            raise KeyError("order table")
        return await super().step(state, action)

    failed: set[str]


def test_branches_of_a_failed_root_are_played_from_the_start(policy: TransformersPolicy, renderer: Renderer):
    world = Breaking(max_turns=4)
    world.failed = set()
    for group in _groups(_collect(policy, renderer, world, group_size=4, error_budget=0.5)):
        failed = next(sample for sample, episode in group.items() if episode.stop == "failed")
        assert failed < 2
        assert {sample: episode.branch is None for sample, episode in group.items()} == {
            0: True,
            1: True,
            2: failed == 0,
            3: failed == 1,
        }


def test_episodes_of_one_turn_have_no_branches(policy: TransformersPolicy, renderer: Renderer):
    episodes = _collect(policy, renderer, Diary(max_turns=1))
    assert all(episode.branch is None for episode in episodes)
    assert len({episode.seed for episode in episodes}) == len(episodes)


class Locked(Diary):
    """A state with a lock, which cannot be copied."""

    def fork(self, state: EnvironmentState) -> EnvironmentState:
        return copy.deepcopy(state)

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        state = await super().reset(scenario, seed=seed)
        return state.after(metadata={**state.metadata, "lock": threading.Lock()})


def test_a_state_that_cannot_be_copied_is_named(policy: TransformersPolicy, renderer: Renderer):
    with pytest.raises(ConfigError, match=r"rollout\.trees: Locked\.fork cannot copy a state: cannot pickle '_thread"):
        _collect(policy, renderer, Locked(max_turns=4))


class Forgetful(Diary):
    """Its fork returns nothing."""

    def fork(self, state: EnvironmentState) -> EnvironmentState:
        super().fork(state)
        return None  # type: ignore[return-value]


def test_a_fork_that_returns_no_state_is_named(policy: TransformersPolicy, renderer: Renderer):
    with pytest.raises(ConfigError, match=r"rollout\.trees: Forgetful\.fork .*what fork returned is None"):
        _collect(policy, renderer, Forgetful(max_turns=4))


class Outside(Diary):
    """Whatever its states refer to, it does not say how to copy them."""

    fork = Environment.fork


def test_an_environment_that_does_not_copy_its_states_has_no_branches(policy: TransformersPolicy, renderer: Renderer):
    """A copy may refer to the session of another episode, so it is not made without the environment's own method."""
    assert not Outside().forks
    assert Diary().forks
    with pytest.raises(ConfigError, match=r"rollout\.trees: Outside does not copy its states\. Write fork"):
        _collect(policy, renderer, Outside(max_turns=4))


def test_a_policy_that_reads_messages_has_no_branches(renderer: Renderer):
    with pytest.raises(ConfigError, match=r"rollout\.trees needs a policy that reads tokens"):
        _collect(ScriptedPolicy(["one", "two"]), renderer)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trees": 8, "group_size": 8}, "trees 8 leaves no episode of a group of 8 that could branch off"),
        ({"trees": 2, "mode": "continuous"}, "cannot be combined with trees"),
        ({"trees": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_without_branches_are_refused(settings: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        RolloutSettings.model_validate(settings)


@pytest.mark.parametrize("max_context", [30, 40])
def test_no_branch_begins_at_a_turn_for_which_the_root_had_no_room(
    policy: TransformersPolicy, renderer: Renderer, max_context: int
):
    """Such a branch would generate nothing, and be its root a second time in the baseline and the loss."""
    episodes = _collect(policy, renderer, max_context=max_context)
    branches = [episode for episode in episodes if episode.branch is not None]
    assert all(episode.loss_mask[episode.branch.tokens :].any() for episode in branches if episode.branch)
    assert any(episode.stop == "truncated" for episode in episodes)
