"""Other people's clients against a real server, each as its documents show: `python cases.py CLIENT`, in .venv-clients.

A case of a client is a function. What it prints is one JSON line for each case: `works`, or the sentence of the error.
The server has the shipped clerk at temperature 0, which calls `look_up` for a question about an order, and reads the
result.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import contextmanager
from typing import Any

import httpx
import openai
from pydantic import BaseModel

URL, KEY, LIMITED = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], os.environ["LIMITED_KEY"]
MODEL = "clerk"
ASK = "Please help me. Where has the carpet? Vat Wolf. One moment. I see 2460 in the mail that you sent. Let me check."
HELLO = "Where has the carpet? Vat Wolf. I see 2460 in the mail that you sent."
FOUND = '{"price": 208, "days": 44, "state": "moving", "charges": 1, "eta": 7}'
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look an order up.",
        "parameters": {
            "type": "object",
            "properties": {"order": {"type": "string", "maxLength": 8}},
            "required": ["order"],
            "additionalProperties": False,
        },
    },
}
CASES: dict[str, dict[str, Callable[[], Any]]] = {}


class Order(BaseModel):
    """Order that a customer asks for."""

    number: int
    urgent: bool


def case(client: str, what: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        CASES.setdefault(client, {})[what] = function
        return function

    return register


@contextmanager
def busy():
    """The limited key, which has one request at a time, has one in progress."""
    body = {
        "model": MODEL,
        "stream": True,
        "max_tokens": 600,
        "messages": [{"role": "user", "content": "x"}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "long", "schema": {"type": "string", "minLength": 500, "maxLength": 520}},
        },
    }
    headers = {"Authorization": f"Bearer {LIMITED}"}
    begun, done = threading.Event(), threading.Event()

    def hold() -> None:
        with httpx.stream("POST", f"{URL}/chat/completions", json=body, headers=headers, timeout=120) as response:
            for _ in response.iter_lines():
                begun.set()
        done.set()

    thread = threading.Thread(target=hold)
    thread.start()
    assert begun.wait(240)
    refused = httpx.post(f"{URL}/chat/completions", json={**body, "stream": False}, headers=headers, timeout=60)
    assert refused.status_code == 429 or done.is_set(), refused.text
    yield
    thread.join()


def replied(message: Any) -> bool:
    """A reply is text or calls: the clerk looks orders up that nobody has asked for."""
    return bool(message.content or message.tool_calls)


def run(awaitable: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(awaitable)


def joined_calls(calls: list[dict[str, Any]], delta: Any) -> None:
    for part in delta.tool_calls or ():
        while len(calls) <= part.index:
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        calls[part.index]["id"] += part.id or ""
        calls[part.index]["function"]["name"] += part.function.name or ""
        calls[part.index]["function"]["arguments"] += part.function.arguments or ""


# OpenAI's own, chat completions


def chat(**fields: Any) -> Any:
    return openai.OpenAI(max_retries=0).chat.completions.create(model=MODEL, **fields)


@case("openai (Python)", "plain")
def _() -> None:
    assert replied(chat(messages=[{"role": "user", "content": HELLO}]).choices[0].message)


@case("openai (Python)", "stream")
def _() -> None:
    chunks = list(
        chat(messages=[{"role": "user", "content": HELLO}], stream=True, stream_options={"include_usage": True})
    )
    assert any(replied(chunk.choices[0].delta) for chunk in chunks if chunk.choices)
    assert chunks[-1].usage


def openai_loop(append: Callable[[Any], Any]) -> None:
    messages: list[Any] = [{"role": "user", "content": ASK}]
    for turn in range(2):
        reply = chat(messages=messages, tools=[TOOL]).choices[0].message
        assert reply.tool_calls or turn, reply
        messages.append(append(reply))
        messages += [{"role": "tool", "tool_call_id": call.id, "content": FOUND} for call in reply.tool_calls or ()]
        if not reply.tool_calls:
            messages.append({"role": "user", "content": HELLO})
    assert chat(messages=messages, tools=[TOOL]).choices[0].finish_reason


@case("openai (Python)", "tool loop")
def _() -> None:
    openai_loop(lambda reply: reply)


@case("openai (Python)", "streamed tool loop")
def _() -> None:
    calls: list[dict[str, Any]] = []
    messages: list[Any] = [{"role": "user", "content": ASK}]
    for chunk in chat(messages=messages, tools=[TOOL], stream=True):
        joined_calls(calls, chunk.choices[0].delta)
    messages += [{"role": "assistant", "content": None, "tool_calls": calls}]
    messages += [{"role": "tool", "tool_call_id": call["id"], "content": FOUND} for call in calls]
    assert calls
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chat(messages=messages, tools=[TOOL], stream=True))


@case("openai (Python)", "history")
def _() -> None:
    for append in (
        lambda reply: reply,
        lambda reply: reply.model_dump(),
        lambda reply: reply.to_dict(),
        lambda reply: {"role": "assistant", "content": reply.content, "tool_calls": reply.tool_calls},
    ):
        openai_loop(append)


@case("openai (Python)", "structured output")
def _() -> None:
    reply = openai.OpenAI().chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": ASK}], response_format=Order, max_tokens=100
    )
    assert isinstance(reply.choices[0].message.parsed, Order)
    strict = {**TOOL, "function": {**TOOL["function"], "strict": True}}
    called = chat(messages=[{"role": "user", "content": HELLO}], tools=[strict], tool_choice="required", max_tokens=60)
    assert json.loads(called.choices[0].message.tool_calls[0].function.arguments).keys() == {"order"}
    again = [
        {"role": "user", "content": ASK},
        reply.choices[0].message.model_dump(),
        {"role": "user", "content": HELLO},
    ]
    assert chat(messages=again).choices


@case("openai (Python)", "two system prompts")
def _() -> None:
    two = [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."}]
    assert chat(messages=[*two, {"role": "user", "content": HELLO}]).choices
    later = [{"role": "user", "content": HELLO}, {"role": "system", "content": "Be brief."}]
    assert chat(messages=[*later, {"role": "user", "content": HELLO}]).choices


@case("openai (Python)", "names")
def _() -> None:
    assert chat(messages=[{"role": "user", "name": "Ann", "content": HELLO}]).choices


@case("openai (Python)", "one call at a time")
def _() -> None:
    reply = chat(messages=[{"role": "user", "content": ASK}], tools=[TOOL], parallel_tool_calls=False)
    assert len(reply.choices[0].message.tool_calls or ()) <= 1


@case("openai (Python)", "cancel")
def _() -> None:
    stream = chat(messages=[{"role": "user", "content": HELLO}], stream=True)
    next(iter(stream))
    stream.close()


@case("openai (Python)", "429")
def _() -> None:
    with busy():
        client = openai.OpenAI(api_key=LIMITED, max_retries=30)
        assert client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": HELLO}]).choices


# LangChain


def langchain(**fields: Any) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=MODEL, **{"max_retries": 0, **fields})


def langchain_tool() -> Any:
    from langchain_core.tools import tool

    @tool
    def look_up(order: str) -> str:
        """Look an order up."""
        return FOUND

    return look_up


@case("LangChain", "plain")
def _() -> None:
    assert replied(langchain().invoke(HELLO))


@case("LangChain", "stream")
def _() -> None:
    assert any(chunk.content or chunk.tool_call_chunks for chunk in langchain().stream(HELLO))


def langchain_loop(invoke: Callable[[Any, Any], Any]) -> None:
    from langchain_core.messages import HumanMessage

    tool = langchain_tool()
    model = langchain().bind_tools([tool])
    messages: list[Any] = [HumanMessage(ASK)]
    reply = invoke(model, messages)
    assert reply.tool_calls
    messages += [reply, *(tool.invoke(call) for call in reply.tool_calls)]
    assert invoke(model, messages).content


@case("LangChain", "tool loop")
def _() -> None:
    langchain_loop(lambda model, messages: model.invoke(messages))


@case("LangChain", "streamed tool loop")
def _() -> None:
    def stream(model: Any, messages: Any) -> Any:
        whole = None
        for chunk in model.stream(messages):
            whole = chunk if whole is None else whole + chunk
        return whole

    langchain_loop(stream)


@case("LangChain", "history")
def _() -> None:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    model = langchain().bind_tools([langchain_tool()])
    reply = model.invoke(ASK)
    results = [ToolMessage(FOUND, tool_call_id=call["id"], name="look_up") for call in reply.tool_calls]
    copied = AIMessage(content=reply.content, tool_calls=reply.tool_calls, name="desk")
    for turn in (reply, copied, reply.model_copy()):
        assert replied(model.invoke([HumanMessage(ASK), turn, *results, AIMessage("Shipped."), HumanMessage(HELLO)]))
    assert replied(model.invoke([("human", HELLO), ("ai", "Bye."), ("human", HELLO)]))


@case("LangChain", "structured output")
def _() -> None:
    for method in ("json_schema", "function_calling"):
        order = langchain(max_tokens=100).with_structured_output(Order, method=method).invoke(ASK)
        assert isinstance(order, Order), method
    assert isinstance(langchain(max_tokens=100).bind(response_format={"type": "json_object"}).invoke(ASK).content, str)


@case("LangChain", "two system prompts")
def _() -> None:
    assert replied(langchain().invoke([("system", "Be brief."), ("system", "Be kind."), ("human", HELLO)]))


@case("LangChain", "names")
def _() -> None:
    from langchain_core.messages import HumanMessage

    assert replied(langchain().invoke([HumanMessage(HELLO, name="Ann")]))


@case("LangChain", "one call at a time")
def _() -> None:
    reply = langchain().bind_tools([langchain_tool()], parallel_tool_calls=False).invoke(ASK)
    assert len(reply.tool_calls) <= 1


@case("LangChain", "cancel")
def _() -> None:
    async def cancel() -> None:
        async for _ in langchain().astream(HELLO):
            break

    run(cancel())


@case("LangChain", "429")
def _() -> None:
    with busy():
        assert replied(langchain(api_key=LIMITED, max_retries=30).invoke(HELLO))


# LangGraph: a supervisor with handoffs


@case("LangGraph supervisor", "tool loop")
def _() -> None:
    from langgraph.prebuilt import create_react_agent
    from langgraph_supervisor import create_supervisor

    desk = create_react_agent(langchain(), tools=[langchain_tool()], name="desk", prompt="You run the order desk.")
    app = create_supervisor([desk], model=langchain(), prompt="Hand orders to the desk.").compile()
    steps: list[str] = []
    for step in app.stream({"messages": [{"role": "user", "content": ASK}]}, {"recursion_limit": 12}):
        steps += step
        if steps[-2:] == ["desk", "supervisor"]:  # which has read the messages of the desk, with their names
            return
    raise AssertionError(f"the steps were {steps}")


@case("LangGraph supervisor", "streamed tool loop")
def _() -> None:
    from langgraph.prebuilt import create_react_agent

    agent = create_react_agent(langchain(), tools=[langchain_tool()])
    steps = list(agent.stream({"messages": [("user", ASK)]}, stream_mode="messages"))
    assert any(chunk.type == "tool" for chunk, _ in steps)


# OpenAI Agents SDK, over both APIs


def agents(api: str) -> Any:
    import agents as sdk

    sdk.set_tracing_disabled(True)
    sdk.set_default_openai_api(api)
    sdk.set_default_openai_client(openai.AsyncOpenAI(max_retries=0), use_for_tracing=False)
    return sdk


def agents_cases(client: str, api: str) -> None:
    def agent(sdk: Any, **fields: Any) -> Any:
        @sdk.function_tool
        def look_up(order: str) -> str:
            """Look an order up."""
            return FOUND

        return sdk.Agent(**{"name": "desk", "instructions": "Be brief.", "model": MODEL, "tools": [look_up], **fields})

    @case(client, "plain")
    def _() -> None:
        sdk = agents(api)
        assert sdk.Runner.run_sync(agent(sdk), HELLO).final_output

    @case(client, "stream")
    def _() -> None:
        sdk = agents(api)

        async def stream() -> list[Any]:
            result = sdk.Runner.run_streamed(agent(sdk), HELLO)
            return [event async for event in result.stream_events()]

        assert any(event.type == "raw_response_event" and "delta" in event.data.type for event in run(stream()))

    @case(client, "tool loop")
    def _() -> None:
        sdk = agents(api)
        result = sdk.Runner.run_sync(agent(sdk), ASK)
        assert any(item.type == "tool_call_output_item" for item in result.new_items)
        assert result.final_output

    @case(client, "streamed tool loop")
    def _() -> None:
        sdk = agents(api)

        async def stream() -> Any:
            result = sdk.Runner.run_streamed(agent(sdk), ASK)
            async for _ in result.stream_events():
                pass
            return result

        assert run(stream()).final_output

    @case(client, "history")
    def _() -> None:
        sdk = agents(api)
        first = sdk.Runner.run_sync(agent(sdk), ASK)
        assert sdk.Runner.run_sync(agent(sdk), [*first.to_input_list(), {"role": "user", "content": HELLO}]).new_items
        if api == "responses":
            follow = sdk.Runner.run_sync(agent(sdk), HELLO, previous_response_id=first.last_response_id)
            assert follow.final_output

    @case(client, "structured output")
    def _() -> None:
        sdk = agents(api)
        result = sdk.Runner.run_sync(agent(sdk, tools=[], output_type=Order), ASK)
        assert isinstance(result.final_output, Order)

    @case(client, "two system prompts")
    def _() -> None:
        sdk = agents(api)
        given = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": HELLO}]
        assert sdk.Runner.run_sync(agent(sdk), given).final_output

    @case(client, "one call at a time")
    def _() -> None:
        sdk = agents(api)
        settings = sdk.ModelSettings(parallel_tool_calls=False)
        assert sdk.Runner.run_sync(agent(sdk, model_settings=settings), ASK).final_output

    @case(client, "cancel")
    def _() -> None:
        sdk = agents(api)

        async def stream() -> None:
            result = sdk.Runner.run_streamed(agent(sdk), HELLO)
            async for _ in result.stream_events():
                result.cancel()

        run(stream())

    @case(client, "429")
    def _() -> None:
        sdk = agents(api)
        sdk.set_default_openai_client(openai.AsyncOpenAI(api_key=LIMITED, max_retries=30), use_for_tracing=False)
        with busy():
            assert sdk.Runner.run_sync(agent(sdk), HELLO).final_output


agents_cases("Agents SDK, chat", "chat_completions")
agents_cases("Agents SDK, Responses", "responses")


# pydantic-ai


def pydantic_ai(**fields: Any) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    key, retries = fields.pop("key", KEY), fields.pop("max_retries", 0)
    client = openai.AsyncOpenAI(api_key=key, max_retries=retries)
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
    return Agent(model, **fields)


def look_up(order: str) -> str:
    """Look an order up."""
    return FOUND


@case("pydantic-ai", "plain")
def _() -> None:
    assert pydantic_ai(tools=[look_up]).run_sync(HELLO).output


@case("pydantic-ai", "stream")
def _() -> None:
    async def stream() -> list[str]:
        async with pydantic_ai(tools=[look_up]).run_stream(HELLO) as result:
            return [text async for text in result.stream_text(delta=True)]

    assert "".join(run(stream()))


@case("pydantic-ai", "tool loop")
def _() -> None:
    assert pydantic_ai(tools=[look_up]).run_sync(ASK).output


@case("pydantic-ai", "streamed tool loop")
def _() -> None:
    async def stream() -> str:
        async with pydantic_ai(tools=[look_up]).run_stream(ASK) as result:
            return str(await result.get_output())

    assert run(stream())


@case("pydantic-ai", "history")
def _() -> None:
    agent = pydantic_ai(tools=[look_up])
    first = agent.run_sync(ASK)
    assert agent.run_sync(HELLO, message_history=first.all_messages()).output


@case("pydantic-ai", "structured output")
def _() -> None:
    from pydantic_ai import NativeOutput, ToolOutput

    for output in (NativeOutput(Order), ToolOutput(Order)):
        assert isinstance(pydantic_ai(output_type=output).run_sync(ASK).output, Order)


@case("pydantic-ai", "two system prompts")
def _() -> None:
    assert pydantic_ai(tools=[look_up], system_prompt=("Be brief.", "Be kind.")).run_sync(HELLO).output


@case("pydantic-ai", "one call at a time")
def _() -> None:
    assert pydantic_ai(tools=[look_up], model_settings={"parallel_tool_calls": False}).run_sync(ASK).output


@case("pydantic-ai", "cancel")
def _() -> None:
    async def stream() -> None:
        async with pydantic_ai(tools=[look_up]).run_stream(HELLO) as result:
            async for _ in result.stream_text(delta=True):
                break

    run(stream())


@case("pydantic-ai", "429")
def _() -> None:
    with busy():
        assert pydantic_ai(tools=[look_up], key=LIMITED, max_retries=30).run_sync(HELLO).output


# instructor


def instructor_of(mode: str, **fields: Any) -> Any:
    import instructor

    return instructor.from_openai(openai.OpenAI(**{"max_retries": 0, **fields}), mode=getattr(instructor.Mode, mode))


@case("instructor", "structured output")
def _() -> None:
    for mode in ("TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA"):
        if mode in ("TOOLS_STRICT", "JSON"):
            continue
        order = instructor_of(mode).create(
            model=MODEL,
            messages=[{"role": "user", "content": ASK}],
            response_model=Order,
            max_retries=0,
            max_tokens=100,
        )
        assert isinstance(order, Order), mode


@case("instructor", "stream")
def _() -> None:
    parts = instructor_of("TOOLS").create_partial(
        model=MODEL, messages=[{"role": "user", "content": ASK}], response_model=Order, max_retries=0, max_tokens=300
    )
    assert list(parts)


@case("instructor", "two system prompts")
def _() -> None:
    two = [{"role": "system", "content": "Be brief."}, {"role": "system", "content": "Be kind."}]
    assert instructor_of("JSON_SCHEMA").create(
        model=MODEL, messages=[*two, {"role": "user", "content": ASK}], response_model=Order, max_tokens=300
    )


@case("instructor", "429")
def _() -> None:
    with busy():
        assert instructor_of("TOOLS", api_key=LIMITED, max_retries=30).create(
            model=MODEL, messages=[{"role": "user", "content": ASK}], response_model=Order, max_tokens=300
        )


# AutoGen


def autogen(**fields: Any) -> Any:
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    info = {
        "vision": False,
        "function_calling": True,
        "json_output": True,
        "structured_output": True,
        "family": "unknown",
    }
    return OpenAIChatCompletionClient(model=MODEL, model_info={**info, "multiple_system_messages": True}, **fields)


def autogen_agent(**fields: Any) -> Any:
    from autogen_agentchat.agents import AssistantAgent

    client = fields.pop("client", None) or autogen()
    return AssistantAgent("desk", client, **{"tools": [look_up], **fields})


@case("AutoGen", "plain")
def _() -> None:
    assert run(autogen_agent(tools=[]).run(task=HELLO)).messages[-1].content


@case("AutoGen", "stream")
def _() -> None:
    async def stream() -> list[Any]:
        agent = autogen_agent(tools=[], model_client_stream=True)
        return [event async for event in agent.run_stream(task=HELLO)]

    assert run(stream())


@case("AutoGen", "tool loop")
def _() -> None:
    messages = run(autogen_agent().run(task=ASK)).messages
    assert any(type(message).__name__ == "ToolCallExecutionEvent" for message in messages)


@case("AutoGen", "streamed tool loop")
def _() -> None:
    messages = run(autogen_agent(model_client_stream=True).run(task=ASK)).messages
    assert any(type(message).__name__ == "ToolCallExecutionEvent" for message in messages)


@case("AutoGen", "history")
def _() -> None:
    async def twice() -> Any:
        agent = autogen_agent()
        await agent.run(task=ASK)
        return await agent.run(task=HELLO)

    assert run(twice()).messages[-1].content


@case("AutoGen", "structured output")
def _() -> None:
    agent = autogen_agent(tools=[], output_content_type=Order)
    assert isinstance(run(agent.run(task=ASK)).messages[-1].content, Order)


@case("AutoGen", "two system prompts")
def _() -> None:
    from autogen_core.models import SystemMessage, UserMessage

    given = [
        SystemMessage(content="Be brief."),
        SystemMessage(content="Be kind."),
        UserMessage(content=HELLO, source="x"),
    ]
    assert run(autogen().create(given)).content


@case("AutoGen", "names")
def _() -> None:
    from autogen_core.models import UserMessage

    assert run(autogen(include_name_in_message=True).create([UserMessage(content=HELLO, source="Ann")])).content


@case("AutoGen", "one call at a time")
def _() -> None:
    assert run(autogen_agent(client=autogen(parallel_tool_calls=False)).run(task=ASK)).messages


@case("AutoGen", "cancel")
def _() -> None:
    from autogen_core import CancellationToken
    from autogen_core.models import UserMessage

    async def stream() -> None:
        token = CancellationToken()
        async for _ in autogen().create_stream([UserMessage(content=HELLO, source="x")], cancellation_token=token):
            token.cancel()
            break

    run(stream())


@case("AutoGen", "429")
def _() -> None:
    from autogen_core.models import UserMessage

    with busy():
        client = autogen(api_key=LIMITED, max_retries=30)
        assert run(client.create([UserMessage(content=HELLO, source="x")])).content


# LiteLLM's client


def litellm_chat(**fields: Any) -> Any:
    import litellm

    litellm.telemetry = False
    return litellm.completion(model=f"openai/{MODEL}", api_base=URL, **{"api_key": KEY, "max_retries": 0, **fields})


@case("LiteLLM", "plain")
def _() -> None:
    assert replied(litellm_chat(messages=[{"role": "user", "content": HELLO}]).choices[0].message)


@case("LiteLLM", "stream")
def _() -> None:
    chunks = litellm_chat(messages=[{"role": "user", "content": HELLO}], stream=True)
    assert any(replied(chunk.choices[0].delta) for chunk in chunks)


def litellm_loop(append: Callable[[Any], Any], ask: Callable[..., Any]) -> None:
    messages: list[Any] = [{"role": "user", "content": ASK}]
    reply = ask(messages=messages, tools=[TOOL])
    assert reply.tool_calls
    messages += [append(reply)]
    messages += [
        {"role": "tool", "tool_call_id": call.id, "name": "look_up", "content": FOUND} for call in reply.tool_calls
    ]
    assert ask(messages=messages, tools=[TOOL]).content


@case("LiteLLM", "tool loop")
def _() -> None:
    litellm_loop(lambda reply: reply, lambda **fields: litellm_chat(**fields).choices[0].message)


@case("LiteLLM", "streamed tool loop")
def _() -> None:
    def stream(**fields: Any) -> Any:
        import litellm

        chunks = list(litellm_chat(stream=True, **fields))
        return litellm.stream_chunk_builder(chunks).choices[0].message

    litellm_loop(lambda reply: reply, stream)


@case("LiteLLM", "history")
def _() -> None:
    litellm_loop(lambda reply: reply.model_dump(), lambda **fields: litellm_chat(**fields).choices[0].message)


@case("LiteLLM", "structured output")
def _() -> None:
    reply = litellm_chat(messages=[{"role": "user", "content": ASK}], response_format=Order, max_tokens=100)
    Order.model_validate_json(reply.choices[0].message.content)


@case("LiteLLM", "two system prompts")
def _() -> None:
    two = [{"role": "system", "content": "Be brief."}, {"role": "system", "content": "Be kind."}]
    assert litellm_chat(messages=[*two, {"role": "user", "content": HELLO}]).choices


@case("LiteLLM", "names")
def _() -> None:
    assert litellm_chat(messages=[{"role": "user", "name": "Ann", "content": HELLO}]).choices


@case("LiteLLM", "one call at a time")
def _() -> None:
    reply = litellm_chat(messages=[{"role": "user", "content": ASK}], tools=[TOOL], parallel_tool_calls=False)
    assert len(reply.choices[0].message.tool_calls or ()) <= 1


@case("LiteLLM", "cancel")
def _() -> None:
    next(iter(litellm_chat(messages=[{"role": "user", "content": HELLO}], stream=True)))


@case("LiteLLM", "429")
def _() -> None:
    with busy():
        assert litellm_chat(messages=[{"role": "user", "content": HELLO}], api_key=LIMITED, max_retries=30).choices


if __name__ == "__main__":
    name = sys.argv[1]
    for what, function in CASES[name].items():
        try:
            function()
            result = "works"
        except Exception as error:  # noqa: BLE001 - any exception of a client is its result
            message = getattr(error, "body", None)
            text = message.get("message") if isinstance(message, dict) else f"{type(error).__name__}: {error}"
            result = " ".join(str(text).split())[:300]
        print(json.dumps({"client": name, "what": what, "result": result}), flush=True)
