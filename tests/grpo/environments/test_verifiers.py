from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import Field, TypeAdapter

from grpo.config.environments import EnvironmentSettings
from grpo.config.rollout import RolloutSettings
from grpo.config.scenarios import Source
from grpo.config.training import TrainingSettings
from grpo.environments.catalog import make_environment
from grpo.errors import ConfigError, DataError
from grpo.identity.code import external_digests
from grpo.learner.checkpoints import read_state, save_base
from grpo.learner.update import update
from grpo.messages import Message, ToolCall
from grpo.policy.transformers.model import load
from grpo.policy.transformers.model_cache import model_cache
from grpo.renderers.chat_template import Renderer
from grpo.rewards.score import score
from grpo.rewards.task import EnvironmentReward
from grpo.rollout.collect import collect
from grpo.scenarios.sources import read_records
from grpo.tables import write_trajectories
from grpo.trajectories import Outcome

vf = pytest.importorskip("verifiers.v1", reason="the extra verifiers is not installed")
from grpo.environments.verifiers import VerifiersEnvironment  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Support for class-based `config`")  # a package below it

TASKSET = """
import verifiers.v1 as vf

__all__ = ["Counting"]

class CountingConfig(vf.TasksetConfig):
    count: int = 2

class Counting(vf.Taskset[vf.Task, CountingConfig]):
    def load(self):
        for number in range(self.config.count):
            yield vf.Task(vf.TaskData(prompt=str(number)))
"""
REPLY = Message(role="assistant", content="abba")


class Letters(vf.Task):  # type: ignore[misc]
    """A small environment as its author would write it for that package."""

    @vf.reward(weight=2.0)
    async def vowels(self, trace: Any) -> float:
        """Share of the reply that is a vowel of the lower or upper case."""
        reply = trace.last_reply
        return sum(letter in "aeiouAEIOU" for letter in reply) / max(len(reply), 1)

    @vf.metric
    async def length(self, trace: Any) -> float:
        """Characters of the reply."""
        return len(trace.last_reply)


class Words(vf.Taskset):  # type: ignore[misc]
    """Four prompts under one system prompt."""

    def load(self) -> Iterator[Letters]:
        for word in ("hello", "my order", "how are you", "broken"):
            yield Letters(vf.TaskData(prompt=word, system_prompt="Say vowels."))


def _words() -> Any:
    return Words(vf.TasksetConfig())


def test_a_task_is_scored_by_its_own_rewards():
    """ "abba": half vowels, weighted by 2, and four characters; one turn and the episode is over."""

    async def run() -> Outcome | None:
        world = VerifiersEnvironment(_words(), success_reward=0.9)
        state = await world.reset(world.scenarios[1])
        assert (state.context, state.history[0].content) == ("Say vowels.", "my order")
        result = await world.step(state, REPLY)
        assert result.terminated
        return await world.conclude(result.state)

    outcome = asyncio.run(run())
    assert outcome is not None
    assert (outcome.reward, outcome.success) == (1.0, True)
    assert outcome.state == {"rewards": {"vowels": 1.0}, "metrics": {"length": 4}}


def test_an_exception_of_a_reward_propagates():
    """The error of the package reaches the rollout."""

    class Broken(Letters):
        @vf.reward
        async def nothing(self, trace: Any) -> float:
            """Divide by zero."""
            return 1 / 0

    class Breaking(Words):
        def load(self) -> Iterator[Letters]:
            yield Broken(vf.TaskData(prompt="hello"))

    async def run() -> None:
        world = VerifiersEnvironment(Breaking(vf.TasksetConfig()))
        await world.conclude((await world.step(await world.reset(), REPLY)).state)

    with pytest.raises(vf.TaskError):
        asyncio.run(run())


class Basket(vf.State):  # type: ignore[misc]
    """State that tools and rewards of one rollout share."""

    items: list[str] = Field(default_factory=list)


class ShopTools(vf.Toolset[vf.ToolsetConfig, Basket]):  # type: ignore[misc]
    """A tool server with a state and a task."""

    TOOL_PREFIX = "shop"

    async def setup_task(self, task: Any) -> None:
        self.stock = task.prompt

    @vf.tool
    def add(self, item: str) -> dict[str, Any]:
        """Put an item into the basket."""
        if item not in self.stock:
            raise ValueError(f"no {item}")
        self.state.items.append(item)
        return {"items": len(self.state.items)}


class Order(vf.Task[vf.TaskData, Basket, vf.TaskConfig]):  # type: ignore[misc]
    """A task with tools, whose reward reads the state and the calls."""

    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return [ShopTools(vf.ToolsetConfig())]

    @vf.reward
    async def bought(self, trace: Any) -> float:
        """Items in the basket, plus a tenth for each call."""
        calls = sum(len(message.tool_calls or []) for message in trace.assistant_messages)
        return len(trace.state.items) + calls / 10


class Orders(vf.Taskset):  # type: ignore[misc]
    """Two orders."""

    def load(self) -> Iterator[Order]:
        for item in ("lamp", "desk"):
            yield Order(vf.TaskData(prompt=f"A {item}, please."))


def test_tools_are_called_over_several_turns_and_share_their_state_with_the_rewards():
    """One item in two calls, of which one fails: 1 + 2/10. Another episode has a basket of its own."""

    async def play(world: VerifiersEnvironment, *items: str) -> tuple[list[str], Outcome]:
        state, results = await world.reset(world.scenarios[0]), []
        for item in items:
            call = ToolCall(name="shop_add", arguments={"item": item})
            result = await world.step(state, Message(role="assistant", content="", tool_calls=(call,)))
            state = result.state
            assert result.response is not None
            results.append(result.response.content)
        return results, await world.conclude((await world.step(state, REPLY)).state)

    async def run() -> None:
        world = VerifiersEnvironment(Orders(vf.TasksetConfig()))
        assert [(tool.name, tool.description) for tool in world.tools] == [("shop_add", "Put an item into the basket.")]
        results, outcome = await play(world, "lamp", "chair")
        assert results == ['{\n  "items": 1\n}', "Error executing tool shop_add: no chair"]
        assert outcome.reward == pytest.approx(1.2)
        assert (await play(world))[1].reward == 0

    asyncio.run(run())


def test_a_config_names_a_taskset_and_its_scenarios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By id, with args; its tasks are the scenarios, its module is part of the identity, a misspelt arg is refused."""
    (tmp_path / "counting_words.py").write_text(TASKSET)
    monkeypatch.syspath_prepend(tmp_path)
    named = {"kind": "verifiers", "id": "counting-words", "args": {"count": 3}}
    settings = TypeAdapter(EnvironmentSettings).validate_python(named)
    source = TypeAdapter(Source).validate_python(named)
    assert [record.data["user_responses"] for record in read_records(source) if record.data] == [["0"], ["1"], ["2"]]
    assert [scenario.user_responses for scenario in make_environment(settings).scenarios] == [("0",), ("1",), ("2",)]
    assert "counting_words:Taskset, module counting_words" in external_digests([settings])
    with pytest.raises(ConfigError, match=r"taskset counting-words: args.cuont: Extra inputs"):
        make_environment(settings.model_copy(update={"args": {"cuont": 3}}))
    with pytest.raises(ConfigError, match="taskset no-words cannot be loaded"):
        make_environment(settings.model_copy(update={"id": "no-words"}))


def test_a_task_that_needs_more_than_a_reply_is_refused():
    """Requirements of rewards and hooks are not ignored, and a prompt ends with the user's message."""

    class Files(Letters):
        @vf.reward
        async def files(self, runtime: Any) -> float:
            """Read a file."""
            return 1.0

    class Filing(Words):
        def load(self) -> Iterator[Letters]:
            yield Files(vf.TaskData(prompt="hello"))

    class Prepared(Letters):
        async def setup(self, trace: Any, runtime: Any) -> None:
            """Write a file."""

    class Preparing(Words):
        def load(self) -> Iterator[Letters]:
            yield Prepared(vf.TaskData(prompt="hello"))

    class Silent(Words):
        def load(self) -> Iterator[Letters]:
            yield Letters(vf.TaskData())

    class Endless(Words):
        INFINITE = True

    reasons = {
        Filing: "needs a runtime for a reward",
        Preparing: "needs a runtime for setup",
        Silent: "must end with the user's message",
    }
    for taskset, reason in reasons.items():
        with pytest.raises(DataError, match=reason):
            VerifiersEnvironment(taskset(vf.TasksetConfig()))
    with pytest.raises(ConfigError, match="Endless is endless"):
        VerifiersEnvironment(Endless(vf.TasksetConfig()))


def test_tasks_of_one_id_are_refused():
    """A scenario would start either of them."""

    class Twice(Words):
        def load(self) -> Iterator[Letters]:
            for prompt, name in (("a", "x"), ("b", "y"), ("c", "x")):
                yield Letters(vf.TaskData(prompt=prompt, id=name))

    with pytest.raises(DataError, match=r"tasks 1 and 3 of taskset Twice have the id verifiers-x"):
        VerifiersEnvironment(Twice(vf.TasksetConfig()))


JUDGE = """
import verifiers.v1 as vf

__all__ = ["Strict"]

class Strict(vf.Judge[float, vf.JudgeConfig]):
    {score}
"""


@pytest.mark.parametrize(
    ("score", "error", "reason"),
    [
        ("async def score(self, task, trace, runtime): return 1.0", DataError, "needs a runtime for a judge"),
        ("strict = True", DataError, "needs a judge with a score"),
        ("def __init__(self, config): raise ValueError('no key')", ConfigError, r"judges \(.*no key.*args.task.judges"),
        ("async def score(self, task, trace): return 1.0", None, ""),
    ],
    ids=["runtime", "no score", "broken", "covered"],
)
def test_a_judge_that_would_not_score_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, score: str, error: type[Exception] | None, reason: str
):
    """Before the first episode; one without a runtime would be left out of the reward."""
    name = f"strict_judge_{abs(hash(score))}"
    (tmp_path / f"{name}.py").write_text(JUDGE.format(score=score))
    monkeypatch.syspath_prepend(tmp_path)
    task = vf.TaskConfig(judges=[{"id": name}])

    class Judged(Words):
        def load(self) -> Iterator[Letters]:
            yield Letters(vf.TaskData(prompt="hello"), task)

    if error is None:
        assert len(VerifiersEnvironment(Judged(vf.TasksetConfig())).scenarios) == 1
        return
    with pytest.raises(error, match=reason):
        VerifiersEnvironment(Judged(vf.TasksetConfig()))


def test_a_verifiers_environment_is_trained_unchanged(tmp_path: Path, tiny_folder: Path):
    """Ten updates on the package's rewards alone: the tiny model generates more vowels than at first."""
    world = VerifiersEnvironment(_words())
    plan = TrainingSettings(algorithm="grpo", learning_rate=3e-2)
    base = tmp_path / "0"
    base.mkdir()
    save_base(load(tiny_folder), base)
    checkpoint, means = base, []
    for iteration in range(11):
        policy = model_cache.get(read_state(checkpoint).policy_hash, checkpoint)
        played = collect(
            world.scenarios,
            policy,
            world,
            Renderer(policy.tokenizer),
            RolloutSettings.model_validate({"max_new_tokens": 6, "on_truncation": "continue"}),
            group_size=8,
            temperature=1.0,
            run_seed=0,
            iteration=iteration,
        )
        means.append(float(np.mean([trajectory.outcome.reward for trajectory in played if trajectory.outcome])))
        if means[-1] > means[0] + 0.5:
            break
        scored, target = tmp_path / f"{iteration}.parquet", tmp_path / str(iteration + 1)
        write_trajectories(scored, score(played, EnvironmentReward()), provenance={})
        assert update([scored], checkpoint, base, target, plan, seed=0, iteration=iteration).changed
        checkpoint = target
    assert means[-1] > means[0] + 0.3
