"""Reward functions in the form of TRL's `reward_funcs`: the shapes of TRL's own examples."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from grpo.config.rewards import RewardComponent
from grpo.errors import ConfigError, RewardError, Unscored
from grpo.messages import Message
from grpo.rewards.catalog import make_composite_reward
from grpo.rewards.hacking.check import check_rewards
from grpo.rewards.reward import Episode, RewardContext, RewardResult
from grpo.scenario import Metadata, Scenario
from grpo.trajectories import Outcome

REWARDS = '''
import re

CALLS = []

def format_reward(completions, **kwargs):
    """Reward completions of the form <think>…</think>."""
    return [1.0 if re.search("^<think>.*?</think>", c[0]["content"]) else 0.0 for c in completions]

def record(**kwargs):
    CALLS.append(kwargs)
    return [0] * len(kwargs["completions"])

def shortest(completions):
    lengths = [len(c[0]["content"]) for c in completions]
    return [float(length == min(lengths)) for length in lengths]

def native(turns, context):
    return 1.0

async def accuracy(completions, answer, scale: float = 1.0):
    return [scale * (c[-1]["content"] == a) for c, a in zip(completions, answer)]

def only_short(completions, **kwargs):
    return [None if len(c[0]["content"]) > 3 else 1.0 for c in completions]

def game_reward(environments, **kwargs):
    return [env.score() for env in environments]

def lost(environments, **kwargs):
    return [env.client for env in environments]

def logged(completions, log_metric, log_extra, **kwargs):
    log_metric("length", 2)
    log_extra("seen", [c[0]["content"] for c in completions])
    return [True for _ in completions]

class Scaled:
    def __init__(self, by: float):
        self.by = by

    def __call__(self, prompts, completions, **kwargs):
        return [self.by] * len(completions)

class Game:
    def score(self):
        return self.points / 10

def short(completions, **kwargs):
    return [1.0]

def nan(completions, **kwargs):
    return [float("nan")] * len(completions)

def fails(completions, **kwargs):
    return [1 / 0]

def scheduled(completions, trainer_state):
    return []

def nothing(completions, **kwargs):
    return None

def one_for_all(completions, **kwargs):
    return 1.0

def a_set(completions, **kwargs):
    return {1.0, 0.5}

def endless(completions, **kwargs):
    return [10 ** 5000] * len(completions)

def generated(completions, **kwargs):
    for completion in completions:
        yield len(completion[0]["content"])

def too_many(completions, **kwargs):
    for number in range(1000):
        CALLS.append(number)
        yield 1.0

def long(completions, **kwargs):
    return [1.0] * 10

def mapped(completions, **kwargs):
    return map(lambda completion: len(completion[0]["content"]), completions)
'''
SCENARIO = Scenario(
    id="s", user_responses=("1 + 1?",), world={"answer": "2"}, metadata=Metadata(category="sums"), context="Add."
)


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's module."""
    (tmp_path / "trl_rewards.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trl_rewards", raising=False)


def component(name: str, weight: float = 1.0, **settings: object) -> RewardComponent:
    return RewardComponent.model_validate(
        {"kind": "trl", "object": f"trl_rewards:{name}", "weight": weight, **settings}
    )


def score(
    components: Sequence[RewardComponent], *replies: str, state: dict[str, object] | None = None
) -> list[RewardResult | Unscored]:
    """Scores of a group with these replies."""
    episodes = [
        Episode(
            turns=(Message(role="user", content="1 + 1?"), Message(role="assistant", content=reply)),
            context=RewardContext(
                scenario_id="s",
                category="sums",
                stop="terminated",
                sample=index,
                scenario=SCENARIO,
                outcome=None if state is None else Outcome(success=None, state=state),
                completion_ids=(7, index),
            ),
        )
        for index, reply in enumerate(replies)
    ]
    return asyncio.run(make_composite_reward(components).compute_group(episodes))


def numbers(results: list[RewardResult | Unscored]) -> list[float | None]:
    return [result.score if isinstance(result, RewardResult) else None for result in results]


def test_a_function_of_trl_scores_completions():
    """TRL's example of a format; weighted as any component."""
    results = score([component("format_reward", weight=0.5)], "<think>x</think>2", "2")
    assert numbers(results) == [0.5, 0.0]


def test_the_group_is_passed_in_one_call_as_trl_passes_it():
    """Messages, token ids, and a list for each column of the scenario, its metadata and its world."""
    score([component("record")], "a", "b")
    [call] = sys.modules["trl_rewards"].CALLS
    assert call["prompts"] == [[{"role": "user", "content": "1 + 1?"}]] * 2
    assert call["completions"] == [[{"role": "assistant", "content": "a"}], [{"role": "assistant", "content": "b"}]]
    assert call["completion_ids"] == [[7, 0], [7, 1]]
    assert (call["answer"], call["category"], call["id"]) == (["2", "2"], ["sums", "sums"], ["s", "s"])
    assert "trainer_state" not in call


def test_completions_are_compared_in_their_group():
    """The shorter of two wins, which calls with one completion each would not show."""
    assert numbers(score([component("shortest")], "long", "2")) == [0.0, 1.0]


@pytest.mark.parametrize("name", ["generated", "mapped"])
def test_scores_may_be_generated(name: str):
    """TRL reads what a function returns one after the other, so that a generator works there."""
    assert numbers(score([component(name)], "long", "2")) == [4.0, 1.0]


def test_a_generator_is_read_to_one_score_too_many():
    """One without an end would fill the memory."""
    with pytest.raises(RewardError, match="returned more than 2 rewards for 2 completions"):
        score([component("too_many")], "long", "2")
    assert sys.modules["trl_rewards"].CALLS == [0, 1, 2]


def test_async_functions_columns_and_options():
    """A column by its name; an option is bound, and one that the signature does not have is refused."""
    assert numbers(score([component("accuracy", options={"scale": 0.5})], "2", "3")) == [0.5, 0.0]
    assert numbers(score([component("Scaled", options={"by": 0.25})], "2")) == [0.25]
    with pytest.raises(ConfigError, match=r"trl_rewards:accuracy has no option 'scael'\. It takes completions, answer"):
        make_composite_reward([component("accuracy", options={"scael": 1})])
    with pytest.raises(ConfigError, match="trl_rewards:format_reward has no option 'length'"):
        make_composite_reward([component("format_reward", options={"length": 1})])


def test_none_leaves_the_component_out_of_the_sum():
    """As TRL's nansum: 0.5 · 1 + 0.5 · 1 for the short reply, 0.5 · 1 for the long; with nothing else, no score."""
    both = [component("only_short", weight=0.5), RewardComponent(kind="constant", weight=0.5)]
    results = score(both, "abc", "abcd")
    assert numbers(results) == [1.0, 0.5]
    assert isinstance(results[1], RewardResult)
    assert set(results[1].breakdown) == {"constant"}
    assert numbers(score([component("only_short")], "abc", "abcd")) == [1.0, None]


def test_environments_are_the_instances_at_the_end_of_their_episodes():
    """With methods and attributes; one that could not be kept explains itself."""
    state: dict[str, object] = {
        "class": "trl_rewards:Game", "attributes": {"points": 4}, "unsaved": {"client": "Client"}
    }  # fmt: skip
    assert numbers(score([component("game_reward")], "a", state=state)) == [0.4]
    with pytest.raises(RewardError, match=r"lost .*Game\.client held Client, which is not kept"):
        score([component("lost")], "a", state=state)


def test_logged_metrics_and_columns_are_in_the_metadata():
    """A boolean is a number, as in TRL."""
    [result] = score([component("logged")], "a")
    assert isinstance(result, RewardResult)
    assert result.score == 1.0
    assert result.metadata["logged"] == {"metrics": {"length": 2.0}, "extra": {"seen": "a"}}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("short", r"trl_rewards:short \(.*trl_rewards.py\) returned 1 rewards for 2 completions"),
        ("long", "returned 10 rewards for 2 completions"),
        ("nan", r"trl_rewards:nan \(.*\) returned nan for a completion\. Return a finite number, or None"),
        ("fails", r"trl_rewards:fails \(.*trl_rewards.py\): ZeroDivisionError: division by zero"),
        ("nothing", r"trl_rewards:nothing \(.*\) returned None for 2 completions\. Return a list with one number"),
        ("one_for_all", r"trl_rewards:one_for_all \(.*\) returned 1\.0 for 2 completions\. Return a list"),
        ("a_set", r"trl_rewards:a_set \(.*\) returned a value of type set for 2 completions\. Return a list"),
        ("endless", r"trl_rewards:endless \(.*\) returned an integer of more than 30 digits for a completion"),
        ("accuracy", r"trl_rewards:accuracy \(.*\) takes answer, which the scenario does not have\. Its"),
    ],
)
def test_another_result_is_an_error_with_the_function_and_its_file(name: str, reason: str):
    """A wrong number of rewards, NaN, and exceptions."""
    world = SCENARIO.model_copy(update={"world": {}})
    episode = Episode(
        turns=(Message(role="user", content="?"), Message(role="assistant", content="a")),
        context=RewardContext(scenario_id="s", category="c", stop="terminated", scenario=world),
    )
    with pytest.raises(RewardError, match=reason):
        asyncio.run(make_composite_reward([component(name)]).compute_group([episode, episode]))


def test_a_function_that_needs_the_trainer_is_refused():
    """Before a run: rewards are computed without one."""
    with pytest.raises(ConfigError, match=r"trl_rewards:scheduled \(.*\) needs trainer_state"):
        make_composite_reward([component("scheduled")])


def test_a_function_of_the_turns_is_told_its_kind():
    """Turns are not a column that a scenario could have."""
    with pytest.raises(ConfigError, match=r"trl_rewards:native \(.*\) takes turns, .* Set kind: python"):
        make_composite_reward([component("native")])


def test_a_function_is_probed_where_it_asks_for_it(monkeypatch: pytest.MonkeyPatch):
    """By itself TRL's format reward gives honest replies nothing, and is not probed."""
    check_rewards([component("format_reward")])
    monkeypatch.setattr(sys.modules["trl_rewards"].format_reward, "probed", True, raising=False)
    with pytest.raises(RewardError, match="gives honest replies 0"):
        check_rewards([component("format_reward")])
