"""Each kind of exception at each call into code of the user: an episode fails, or the run ends with one sentence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from grpo.agents.memory import ConversationMemory
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.agents.tool_agent import ToolAgent
from grpo.config.agent import AgentConfig
from grpo.config.renderer import RendererSettings
from grpo.config.rollout import RolloutSettings
from grpo.environments.environment import Environment, EnvironmentState, StepResult
from grpo.environments.task import TaskEnvironment
from grpo.environments.users.user import ScriptedUser, UserTurn
from grpo.errors import BudgetError, ConfigError, GRPOError, PolicyError, RewardError
from grpo.messages import Message
from grpo.policy.scripted import ScriptedPolicy
from grpo.policy.transformers.model import load
from grpo.renderers.chat_template import Renderer
from grpo.rewards.composite import CompositeReward
from grpo.rewards.hacking.check import probe_reward
from grpo.rewards.reward import Episode, FunctionReward, GroupReward, RewardFunction, RewardResult
from grpo.rewards.score import score
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.serving.engine.served_model import ServedModel
from grpo.trajectories import Outcome, Trajectory
from grpo.user_objects import make_object
from tests.grpo.serving.chat_servers import chat_server

CALL = '<tool_call>{"name": "look_up", "arguments": {"order": "12"}}</tool_call>'
SCENARIO = Scenario(id="order-12", user_responses=("Where is order 12?", "Thanks."))


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit(0)


class OwnBase(BaseException):
    pass


def _recurse() -> None:
    _recurse()


def _raiser(make: Callable[[], BaseException]) -> Callable[[], None]:
    def fail() -> None:
        raise make()

    return fail


EXCEPTIONS: dict[str, Callable[[], None]] = {
    "KeyError": _raiser(lambda: KeyError("order")),
    "SystemExit": _raiser(lambda: SystemExit(0)),
    "KeyboardInterrupt": _raiser(KeyboardInterrupt),
    "GeneratorExit": _raiser(GeneratorExit),
    "RecursionError": _recurse,
    "MemoryError": _raiser(MemoryError),
    "CancelledError": _raiser(asyncio.CancelledError),
    "StopIteration": _raiser(StopIteration),
    "StopAsyncIteration": _raiser(StopAsyncIteration),
    "a message that cannot be made": _raiser(Unprintable),
    "escape sequences": _raiser(lambda: ValueError("\x1b[2J\x1b]0;title\x07 \ud83d \r\n\0")),
    "megabytes": _raiser(lambda: ValueError("x" * 10**6)),
    "a group": _raiser(lambda: ExceptionGroup("several", [KeyError("order"), ValueError("b")])),
    "a group of SystemExit": _raiser(lambda: BaseExceptionGroup("several", [SystemExit(0)])),
    "an exception of its own": _raiser(OwnBase),
}


class Trap:
    """Raises at one seam, the first time that it is reached."""

    def __init__(self, seam: str, fail: Callable[[], None]) -> None:
        self.seam, self._fail, self.sprung = seam, fail, False

    def __call__(self, seam: str) -> None:
        if seam == self.seam and not self.sprung:
            self.sprung = True
            self._fail()


class TrappedUser(ScriptedUser):
    def __init__(self, trap: Trap) -> None:
        self.trap = trap

    async def first_turn(self, scenario: Scenario, *, seed: int | None) -> UserTurn:
        self.trap("user.first_turn")
        return await super().first_turn(scenario, seed=seed)

    async def next_turn(self, scenario: Scenario, history: Sequence[Message], memory: Mapping[str, Any]) -> UserTurn:
        self.trap("user.next_turn")
        return await super().next_turn(scenario, history, memory)


class TrappedEnvironment(TaskEnvironment):
    def __init__(self, trap: Trap) -> None:
        self.trap = trap

        def look_up(state: Mapping[str, Any], order: str) -> tuple[Mapping[str, Any], str]:
            """Look up an order."""
            trap("environment.tool")
            return state, order

        super().__init__(functions=(look_up,), criteria={"never": lambda _: False}, user=TrappedUser(trap))

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        self.trap("environment.reset")
        return await super().reset(scenario, seed=seed)

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        self.trap("environment.step")
        return await super().step(state, action)

    def verify(self, state: EnvironmentState) -> Outcome:
        self.trap("environment.verify")
        return super().verify(state)

    async def check(self, scenario: Scenario) -> None:
        self.trap("environment.check")
        await super().check(scenario)

    @asynccontextmanager
    async def serve(self, *, concurrency: int) -> AsyncIterator[None]:
        self.trap("environment.serve")
        yield
        self.trap("environment.serve, at its end")


class TrappedMemory(ConversationMemory):
    def __init__(self, trap: Trap) -> None:
        super().__init__()
        self.trap = trap

    def recall(self, *arguments: Any, **options: Any) -> list[str]:
        self.trap("agent.memory")
        return super().recall(*arguments, **options)


class TrappedAgent(ToolAgent):
    def __init__(self, trap: Trap) -> None:
        def count() -> int:
            """Count."""
            trap("agent.tool")
            return 1

        super().__init__(AgentConfig(), [{"name": "count", "function": count}], memory=TrappedMemory(trap))
        self.trap = trap

    async def process_turn(self, history: Any, user_input: str, context: Any = None) -> str:
        self.trap("agent.process_turn")
        return await super().process_turn(history, user_input, context)

    async def generate_response(self, messages: Any, context: Any = None) -> str:
        text = await super().generate_response(messages, context)
        self.trap("agent.generate_response")
        return text

    def instructions(self, messages: Sequence[Message], context: Any) -> list[str]:
        self.trap("agent.instructions")
        return super().instructions(messages, context)


class TrappedRenderer(Renderer):
    trap: Trap

    def parse_reply(self, token_ids: Sequence[int]) -> Message:
        self.trap("renderer")
        return super().parse_reply(token_ids)


EPISODE_SEAMS = (
    "environment.reset", "environment.step", "environment.verify", "environment.tool", "user.first_turn",
    "user.next_turn", "agent.process_turn", "agent.generate_response", "agent.instructions", "agent.memory",
    "agent.tool", "renderer",
)  # fmt: skip
RUN_SEAMS = ("environment.check", "environment.serve", "environment.serve, at its end")


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> Any:
    return load(tiny_folder).tokenizer


def _collect(trap: Trap, tokenizer: Any, *, error_budget: float) -> list[Trajectory]:
    environment, agent = TrappedEnvironment(trap), TrappedAgent(trap)
    renderer = TrappedRenderer(tokenizer, tools=(*environment.tools, *agent.tools))
    renderer.trap = trap
    count = '<tool_call>{"name": "count", "arguments": {}}</tool_call>'
    return collect(
        [SCENARIO], ScriptedPolicy([count, CALL, "It is here.", "Bye."]), environment, renderer,
        RolloutSettings(max_context=20_000, max_new_tokens=500, error_budget=error_budget, concurrency=1), agent=agent,
        group_size=2, temperature=1.0, run_seed=0, iteration=0,
    )  # fmt: skip


def _is_one_line(text: str) -> bool:
    return text.isprintable() and len(text) < 1000


@pytest.mark.parametrize("kind", EXCEPTIONS)
@pytest.mark.parametrize("seam", EPISODE_SEAMS)
def test_an_exception_of_a_turn_costs_its_episode_at_most(tokenizer: Any, seam: str, kind: str):
    """The other episode ends; a tool's exception is a result that the model reads."""
    trap = Trap(seam, EXCEPTIONS[kind])
    trajectories = _collect(trap, tokenizer, error_budget=1.0)
    assert trap.sprung
    failed = [trajectory for trajectory in trajectories if trajectory.stop == "failed"]
    assert len(failed) == (0 if seam.endswith("tool") else 1)
    for trajectory in failed:
        assert trajectory.error is not None
        assert _is_one_line(trajectory.error)
        assert "test_seams.py:" in trajectory.error
    for trajectory in trajectories:
        assert all(message.content.encode() is not None for message in trajectory.messages)


class OddRenderer(TrappedRenderer):
    """Returns what is no prompt."""

    prompt: Any = None

    def build_prompt(self, messages: Sequence[Message]) -> list[int]:
        return self.prompt  # type: ignore[no-any-return]


@pytest.mark.parametrize("prompt", [None, [], [-1], [0.5], "text", np.array([1, 2])])
def test_a_renderer_returns_token_ids(tokenizer: Any, prompt: Any, monkeypatch: pytest.MonkeyPatch):
    """Otherwise torch would raise an error that names neither the renderer nor its value."""
    monkeypatch.setattr(f"{__name__}.TrappedRenderer", OddRenderer)
    monkeypatch.setattr(OddRenderer, "prompt", prompt)
    with pytest.raises(PolicyError, match=r"the renderer OddRenderer returned .* Return a list of token ids"):
        _collect(Trap("", KeyError), tokenizer, error_budget=1.0)


class OddAgent(TrappedAgent):
    """Overrides hooks in ways that people do by mistake."""

    def instructions(self, messages: Sequence[Message], context: Any) -> Any:
        return "Be brief."


def test_instructions_are_a_list_of_paragraphs(tokenizer: Any, monkeypatch: pytest.MonkeyPatch):
    """A text would become one paragraph for each character, and would be trained on."""
    monkeypatch.setattr(f"{__name__}.TrappedAgent", OddAgent)
    trajectories = _collect(Trap("", KeyError), tokenizer, error_budget=1.0)
    errors = [str(trajectory.error) for trajectory in trajectories]
    assert all("instructions returned" in error and "Return a list of texts" in error for error in errors), errors


@pytest.mark.parametrize(("owner", "method"), [("TrappedAgent", "process_turn"), ("TrappedEnvironment", "step")])
def test_a_hook_without_async_is_named(tokenizer: Any, owner: str, method: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(f"{__name__}.{owner}.{method}", lambda *_, **__: "Hello.")
    trajectories = _collect(Trap("", KeyError), tokenizer, error_budget=1.0)
    assert all("Write it with `async def`" in str(trajectory.error) for trajectory in trajectories)


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_failed_episodes_above_the_budget_end_the_run_with_one_sentence(tokenizer: Any, kind: str):
    """With the first of them."""
    with pytest.raises(BudgetError, match=r"1 of 2 episodes have failed.*order-12.*test_seams\.py:") as ended:
        _collect(Trap("environment.step", EXCEPTIONS[kind]), tokenizer, error_budget=0.0)
    assert _is_one_line(str(ended.value))


@pytest.mark.parametrize("kind", EXCEPTIONS)
@pytest.mark.parametrize("seam", RUN_SEAMS)
def test_an_exception_around_the_episodes_ends_the_run_with_one_sentence(tokenizer: Any, seam: str, kind: str):
    """With what was called, the file and the line, and what to do."""
    with pytest.raises(GRPOError, match=r"the environment's .* raised .*test_seams\.py:.*Correct it") as ended:
        _collect(Trap(seam, EXCEPTIONS[kind]), tokenizer, error_budget=1.0)
    assert _is_one_line(str(ended.value))


class TrappedReward(RewardFunction):
    name = "trapped"

    def __init__(self, trap: Trap) -> None:
        super().__init__()
        self.trap = trap

    async def compute_reward(self, turns: Sequence[Message], context: Any) -> RewardResult:
        self.trap("reward")
        return RewardResult(score=1.0)


class TrappedGroupReward(GroupReward):
    name = "trapped"

    def __init__(self, trap: Trap) -> None:
        super().__init__()
        self.trap = trap

    async def compute_group(self, episodes: Sequence[Episode]) -> Any:
        self.trap("reward")
        return [RewardResult(score=1.0)] * len(episodes)


def _function(trap: Trap) -> FunctionReward:
    def trapped(turns: Sequence[Message]) -> float:
        trap("reward")
        return 1.0

    return FunctionReward(trapped)


REWARDS: dict[str, Callable[[Trap], RewardFunction]] = {
    "of a class": TrappedReward,
    "of a group": TrappedGroupReward,
    "of a function": _function,
    "of a composite": lambda trap: CompositeReward([TrappedReward(trap)]),
    "of a composite's group": lambda trap: CompositeReward([TrappedGroupReward(trap)]),
}


@pytest.mark.parametrize("kind", EXCEPTIONS)
@pytest.mark.parametrize("place", REWARDS)
def test_an_exception_of_a_reward_ends_the_run_with_one_sentence(tokenizer: Any, place: str, kind: str):
    """Scenario, reward, file and line, and the command that tries it; in the reward check as well."""
    played = _collect(Trap("nowhere", lambda: None), tokenizer, error_budget=0.0)
    expected = r"order-12.*reward trapped raised .*test_seams\.py:.*grpo check-reward"
    with pytest.raises(RewardError, match=expected) as ended:
        list(score(played, REWARDS[place](Trap("reward", EXCEPTIONS[kind]))))
    assert _is_one_line(str(ended.value))
    with pytest.raises(RewardError, match=r"reward trapped raised .*test_seams\.py:"):
        probe_reward(REWARDS[place](Trap("reward", EXCEPTIONS[kind])))


class TrappedObject(Environment):
    def __init__(self, kind: str) -> None:
        EXCEPTIONS[kind]()

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        raise NotImplementedError

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        raise NotImplementedError


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_an_object_that_cannot_be_made_is_refused(kind: str):
    """With its name, its options, and the file and line."""
    with pytest.raises(ConfigError, match=r"cannot be made with options .*test_seams\.py:") as refused:
        make_object(f"{__name__}:TrappedObject", {"kind": kind}, Environment)
    assert _is_one_line(str(refused.value))


class ServedTrap(MultiTurnAgent):
    """Raises what it is told to, in its hook or in its memory."""

    seam = kind = ""

    async def process_turn(self, history: Any, user_input: str, context: Any = None) -> str:
        if self.seam == "hook":
            EXCEPTIONS[self.kind]()
        if self.seam in ("task", "task of a task"):
            await asyncio.create_task(self._in_a_task(nested=self.seam == "task of a task"))
        return await super().process_turn(history, user_input, context)

    async def _in_a_task(self, *, nested: bool) -> None:
        if nested:
            await asyncio.gather(self._in_a_task(nested=False))
        EXCEPTIONS[self.kind]()

    def remember(self, message: Message, reply: str, context: Any = None) -> None:
        if self.seam == "memory":
            EXCEPTIONS[self.kind]()


class ServedRenderer(Renderer):
    """Raises what it is told to where a server calls it."""

    seam = kind = ""

    def count_tokens(self, messages: Sequence[Message]) -> int:
        self._fail_at("count")
        return super().count_tokens(messages)

    def build_prompt(self, messages: Sequence[Message]) -> list[int]:
        self._fail_at("prompt")
        return super().build_prompt(messages)

    def parse_text(self, text: str) -> Message:
        self._fail_at("text")
        return super().parse_text(text)

    def parse_reply(self, token_ids: Sequence[int]) -> Message:
        self._fail_at("reply")
        return super().parse_reply(token_ids)

    def _fail_at(self, seam: str) -> None:
        if self.seam == seam:
            EXCEPTIONS[self.kind]()


def test_an_exception_of_a_served_agent_ends_its_turn_and_not_the_server(tmp_path: Path, tokenizer: Any):
    """Each kind in turn: 500 for its client, a line in the log, and the next request is answered."""
    agent = ServedTrap(AgentConfig(model_name="shop"))
    policy = ScriptedPolicy(["Hello."])
    policy.tokenizer = tokenizer  # type: ignore[attr-defined]
    agent.set_policy(policy)
    model = ServedModel(
        model="shop", version="shop/1", policy=policy, agent=agent, temperature=1.0, max_new_tokens=64, max_context=1000
    )
    with chat_server(tmp_path, lambda current: None if current else model) as server:
        ask = server.client().chat.completions.create
        question: Any = [{"role": "user", "content": "Hi."}]
        for kind in EXCEPTIONS:
            agent.seam, agent.kind = "hook", kind
            with pytest.raises(openai.InternalServerError):
                ask(model="shop", messages=question)
            agent.seam = "memory"
            assert ask(model="shop", messages=question).choices[0].message.content == "Hello."
        turns = server.turns()
    assert [turn.status for turn in turns] == ["failed", "answered"] * len(EXCEPTIONS)
    assert all(_is_one_line(turn.reason) for turn in turns)


def _served(tokenizer: Any, agent: MultiTurnAgent, renderer: RendererSettings | None = None) -> ServedModel:
    policy = ScriptedPolicy(["Hello."])
    policy.tokenizer = tokenizer  # type: ignore[attr-defined]
    agent.set_policy(policy)
    return ServedModel(
        model="shop",
        version="shop/1",
        policy=policy,
        agent=agent,
        temperature=1.0,
        max_new_tokens=64,
        max_context=1000,
        renderer=renderer,
    )


@pytest.mark.parametrize("seam", ["task", "task of a task"])
def test_an_exception_in_a_task_of_a_served_agent_ends_its_turn_and_not_the_server(
    tmp_path: Path, tokenizer: Any, seam: str
):
    """asyncio raises `SystemExit` of a task out of the event loop: 500 for its client, and the server answers on."""
    agent = ServedTrap(AgentConfig(model_name="shop"))
    model = _served(tokenizer, agent)
    with chat_server(tmp_path, lambda current: None if current else model) as server:
        ask = server.client().chat.completions.create
        question: Any = [{"role": "user", "content": "Hi."}]
        for kind in ("SystemExit", "KeyboardInterrupt"):
            agent.seam, agent.kind = seam, kind
            with pytest.raises(openai.InternalServerError):
                ask(model="shop", messages=question)
            agent.seam = ""
            assert ask(model="shop", messages=question).choices[0].message.content == "Hello."


@pytest.mark.parametrize("seam", ["count", "prompt", "reply", "text"])
def test_an_exception_of_a_served_renderer_ends_its_request_and_not_the_server(
    tmp_path: Path, tokenizer: Any, seam: str, monkeypatch: pytest.MonkeyPatch
):
    """Counting, prompt, reply, and the text before a stop text: 5xx for its client, and the server answers on."""
    settings = RendererSettings.model_validate({"kind": "python", "object": f"{__name__}:ServedRenderer"})
    agent = MultiTurnAgent(AgentConfig(model_name="shop"))
    model = _served(tokenizer, agent, settings)
    with chat_server(tmp_path, lambda current: None if current else model) as server:
        ask = server.client().chat.completions.create
        question: Any = [{"role": "user", "content": "Hi."}]
        more: Any = {"stop": ["o."]} if seam == "text" else {}
        for kind in ("SystemExit", "KeyboardInterrupt", "StopIteration"):
            monkeypatch.setattr(ServedRenderer, "kind", kind)
            monkeypatch.setattr(ServedRenderer, "seam", seam)
            with pytest.raises(openai.InternalServerError):
                ask(model="shop", messages=question, **more)
            monkeypatch.setattr(ServedRenderer, "seam", "")
            assert ask(model="shop", messages=question).choices[0].message.content == "Hello."
