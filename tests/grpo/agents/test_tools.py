from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.agents.tool_agent import ToolAgent
from grpo.agents.tools import Toolbox
from grpo.config.agent import AgentConfig
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import EnvironmentState, StepResult
from grpo.errors import ConfigError
from grpo.messages import Message, ToolCall
from grpo.policy.scripted import ScriptedPolicy
from grpo.renderers.byte_renderer import ByteRenderer
from grpo.renderers.reply_format import HERMES
from tests.grpo.agents.fixtures import Echo, roll_out, run, stub


def multiply(first: int, second: int = 2) -> int:
    """The product of two numbers.

    Of any size.
    """
    return first * second


async def search(query: str) -> list[str]:
    await asyncio.sleep(0)
    return [query.upper()]


def _box(**settings: float) -> Toolbox:
    box = Toolbox(**settings)
    box.register("multiply", multiply)
    box.register("search", search)
    return box


def _call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def _text(name: str, **arguments: Any) -> str:
    return f"<tool_call>{_call(name, **arguments)}</tool_call>"


def test_the_schema_of_a_tool_comes_from_its_signature():
    """Types and required parameters from the annotations, the description from the docstring's first line."""
    tool = _box().tools[0]
    assert (tool.name, tool.description) == ("multiply", "The product of two numbers.")
    assert tool.parameters["properties"]["first"]["type"] == "integer"
    assert tool.parameters["required"] == ["first"]


def test_functions_are_run_with_the_arguments_of_the_call():
    """Sync and async alike; a missing argument takes its default."""
    box = _box()
    assert run(box.run(_call("multiply", first=6, second=7))) == 42
    assert run(box.run(_call("multiply", first=6))) == 12
    assert run(box.run(_call("search", query="a"))) == ["A"]


def test_several_calls_are_answered_in_one_message():
    """In their order; a message without calls has no answer."""
    message = HERMES.parse(_text("multiply", first=1) + _text("search", query="a"))
    result = run(_box().execute(message))
    assert result is not None
    assert (result.role, json.loads(result.content)) == ("tool", [2, ["A"]])
    assert run(_box().execute(Message(role="assistant", content="no call"))) is None


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (_call("divide"), "unknown_tool", "there is multiply, search"),
        (_call("multiply", first="six"), "bad_arguments", "first: 'six' is not of type 'integer'"),
        (_call("multiply"), "bad_arguments", "'first' is a required property"),
        (_call("multiply", first=1, third=3), "bad_arguments", "no argument third; it takes first, second"),
    ],
)
def test_an_invalid_call_returns_a_typed_error(call: ToolCall, kind: str, words: str):
    """It names the tool, the argument and the remedy."""
    error = run(_box().run(call))["error"]
    assert error["type"] == kind
    assert words in error["message"]


def test_a_malformed_call_returns_a_typed_error():
    """A bad_call with the expected form."""
    result = run(_box().execute(HERMES.parse("<tool_call>multiply(6, 7)</tool_call>")))
    assert result is not None
    assert json.loads(result.content)["error"]["type"] == "bad_call"


async def _sleeps() -> None:
    await asyncio.sleep(3600)


def test_a_tool_timeout_returns_a_typed_error():
    """Sync or async: the model reads the limit; the sync function ends when it is released."""
    released = threading.Event()
    box = Toolbox(timeout_s=0.05)
    box.register("slow", _sleeps)
    box.register("blocking", lambda: released.wait(240))

    async def both() -> list[object]:
        results = [await box.run(_call(name)) for name in ("slow", "blocking")]
        released.set()
        return results

    assert run(both()) == [
        {"error": {"type": "timeout", "message": f"{name} took longer than 0.05 s"}} for name in ("slow", "blocking")
    ]


def _raises(failure: Exception) -> Any:
    def function() -> None:
        raise failure

    return function


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_raises(KeyError("order")), "KeyError: 'order'"),
        (_raises(TimeoutError("upstream")), "TimeoutError: upstream"),
        (lambda: object(), "the result is not a value of JSON: Object of type object is not JSON serializable"),
    ],
)
def test_an_exception_of_a_tool_returns_a_typed_error(function: Any, message: str):
    """Its own exception, its own timeout, and a result that is not JSON."""
    box = Toolbox()
    box.register("f", function)
    assert run(box.run(_call("f"))) == {"error": {"type": "exception", "message": message}}


@pytest.mark.parametrize(
    ("tool", "problem"),
    [
        ({"name": "multiply", "function": multiply}, "'multiply' is taken"),
        ({"name": "", "function": multiply}, "'' is empty"),
        ({"name": "x", "function": 3}, "cannot be called"),
        ({"name": "x", "function": multiply, "parameters": {"type": "thing"}}, "not a JSON schema"),
        ({"name": "x", "fn": multiply}, "This one has name, fn"),
        ({"name": "x", "function": lambda *rest: rest}, "without names"),
    ],
)
def test_an_invalid_tool_is_refused(tool: dict[str, Any], problem: str):
    """The message names the tool and the fault."""
    with pytest.raises(ConfigError, match=problem):
        ToolAgent(AgentConfig(), [{"name": "multiply", "function": multiply}, tool])


MULTIPLY = {"name": "multiply", "function": multiply}


class Calculator(Echo):
    """Calls multiply for a user message, and replies with the result."""

    def reply(self, last: Message) -> str:
        return _text("multiply", first=6, second=7) if last.role == "user" else f"It is {last.content}."


def test_the_tool_result_is_read_before_the_reply():
    """The policy's second prompt has the call and 42."""
    echo = Calculator()
    agent = ToolAgent(AgentConfig(), [MULTIPLY], policy=echo)
    run(agent.initialize())
    assert run(agent.generate_response("6 · 7?")) == "It is 42."
    first, second = echo.prompts
    assert [m.role for m in first] == ["user"]
    assert [m.role for m in second] == ["user", "assistant", "tool"]
    assert second[1].tool_calls == (_call("multiply", first=6, second=7),)


def test_the_model_reads_tool_errors_and_may_retry():
    """Unknown tool, bad arguments, then the right call: three results, one reply."""
    agent = stub(
        _text("divide", first=1), _text("multiply", first="x"), _text("multiply", first=6), "12", tools=[MULTIPLY]
    )

    async def turn() -> list[Message]:
        async with agent.open_transcript() as transcript:
            await agent.respond(transcript, [Message(role="user", content="6 · 2?")])
            return transcript.conversation

    conversation = run(turn())
    assert [m.role for m in conversation] == ["user", *("assistant", "tool") * 3, "assistant"]
    results = [json.loads(m.content) for m in conversation if m.role == "tool"]
    assert [r["error"]["type"] if isinstance(r, dict) else r for r in results] == ["unknown_tool", "bad_arguments", 12]


def test_rounds_of_calls_are_bounded():
    """Two rounds run, the third is refused, and the next generation is the reply, a call or not."""
    ran: list[int] = []
    config = AgentConfig(use_stub_model=True, stub_responses=(_text("f"),))
    agent = ToolAgent(config, [{"name": "f", "function": lambda: ran.append(1)}], max_rounds=2)
    run(agent.initialize())
    assert run(agent.generate_response("go")) == _text("f")
    assert len(ran) == 2


def test_tools_are_registered_before_initialize():
    """Afterwards the renderer has the tools."""
    config = AgentConfig(use_stub_model=True, stub_responses=(_text("multiply", first=2), "4"))
    agent = ToolAgent(config)
    agent.register_tool("multiply", multiply)
    run(agent.initialize())
    assert run(agent.generate_response("2 · 2?")) == "4"
    with pytest.raises(ConfigError, match="was registered after initialize"):
        agent.register_tool("search", search)


def test_an_environment_may_use_a_toolbox():
    """The same validation and the same results, in a rollout."""
    box = _box()

    class Workshop(ConversationEnvironment):
        tools = box.tools

        async def step(self, state: EnvironmentState, action: Message) -> StepResult:
            result = await box.execute(action)
            if result is None:
                return await super().step(state, action)
            return StepResult(state=state.after(action, result, turn_count=state.turn_count + 1), response=result)

    calls = (_text("multiply", first=6, second=7), _text("divide"), "It is 42.")
    (trajectory,) = roll_out(
        MultiTurnAgent(),
        ScriptedPolicy([calls]),
        ByteRenderer(tools=Workshop.tools),
        world=Workshop(),
        lines=("6 · 7?",),
        group_size=1,
        max_new_tokens=200,
        max_context=4000,
    )
    assert [m.role for m in trajectory.messages] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    results = [json.loads(m.content) for m in trajectory.messages if m.role == "tool"]
    assert results[0] == 42
    assert results[1]["error"]["type"] == "unknown_tool"


def test_tools_that_hang_do_not_delay_others():
    """Forty hanging calls, more than a pool of threads would have, and one that answers."""
    box, release = Toolbox(timeout_s=2.0), threading.Event()
    box.register("hang", lambda: release.wait(240))
    box.register("fast", lambda: "here")

    async def calls() -> Any:
        hanging = [asyncio.create_task(box.run(_call("hang"))) for _ in range(40)]
        await asyncio.sleep(0.05)
        answer = await box.run(_call("fast"))
        return answer, await asyncio.gather(*hanging)

    answer, others = run(calls())
    release.set()
    assert answer == "here"
    assert {other["error"]["type"] for other in others} == {"timeout"}
