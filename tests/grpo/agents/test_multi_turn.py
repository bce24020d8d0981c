from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage

from grpo.agents.agent import Agent, to_messages
from grpo.agents.memory import ConversationMemory
from grpo.agents.multi_turn import MultiTurnAgent, create_agent, create_stub_agent
from grpo.agents.tool_agent import ToolAgent
from grpo.config.agent import AgentConfig
from grpo.errors import ConfigError, DataError, PolicyError
from grpo.messages import Message, ToolCall
from grpo.policy.policy import Generation, Prompt, SampledToken, Sampling
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.byte_renderer import ByteRenderer
from grpo.renderers.chat_template import Renderer
from tests.grpo.agents.fixtures import Echo, make_agent, run, stub
from tests.places import ROOT

THREE = ("Hello!", "Happy to help.", "Anything else?")


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


def test_an_agent_must_implement_initialize_and_generate_response():
    """The base class cannot be instantiated; a subclass with both methods can."""
    with pytest.raises(TypeError, match="generate_response"):
        Agent()  # type: ignore[abstract]

    class Parrot(Agent):
        async def initialize(self) -> None:
            self.ready = True

        async def generate_response(self, messages: Any, context: Any = None) -> str:
            return messages if isinstance(messages, str) else messages[-1]["content"]

    assert run(Parrot().generate_response("hi")) == "hi"


def test_a_string_is_one_user_message():
    """Two agents with the same script reply alike to a string and to the message that it stands for."""
    assert run(stub(*THREE).generate_response("hi")) == "Hello!"
    assert run(stub(*THREE).generate_response([{"role": "user", "content": "hi"}])) == "Hello!"


def test_messages_are_read_in_the_format_of_openai():
    """Arguments as JSON text, the id of a result, parts, a developer, and a reply of OpenAI's client."""
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": "7"}'}}
    reply = ChatCompletionMessage.model_validate({"role": "assistant", "content": None, "tool_calls": [call]})
    sent = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Where is 7?"}], "name": "ann"},
        reply,
        {"role": "tool", "tool_call_id": "c1", "content": "lost"},
    ]
    assert to_messages(sent) == (  # type: ignore[arg-type]
        Message(role="system", content="Be brief."),
        Message(role="user", content="Where is 7?"),
        Message(role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={"order": "7"}),)),
        Message(role="tool", content="lost"),
    )
    assert to_messages(iter(sent)) == to_messages(sent)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="message is not an object: message 0 is int"):
        to_messages([7])  # type: ignore[list-item]


def test_a_stub_cycles_through_its_replies():
    """Each call returns the next one."""
    agent = stub(*THREE)
    assert [run(agent.generate_response("hi")) for _ in range(4)] == [*THREE, "Hello!"]


@pytest.mark.parametrize("way", ["config", "memory", "from_model"])
def test_an_agent_is_made_in_three_ways_and_its_policy_reads_the_turns_in_order(tiny_folder: Path, way: str):
    """Each generates with the model of the folder, whose prompt has the system prompt and the turns in order."""
    config = AgentConfig(model_name=str(tiny_folder), max_new_tokens=4)
    agent = {
        "config": lambda: MultiTurnAgent(config),
        "memory": lambda: MultiTurnAgent(config, memory=ConversationMemory()),
        "from_model": lambda: MultiTurnAgent.from_model(str(tiny_folder), max_new_tokens=4),
    }[way]()
    run(agent.initialize())
    chat: list[dict[str, str]] = []
    for text in ("one", "two", "three"):
        chat.append({"role": "user", "content": text})
        chat.append({"role": "assistant", "content": run(agent.generate_response(chat))})
    assert len(chat) == 6
    echo = make_agent(Echo(), system_prompt="Be brief.")
    run(echo.generate_response(chat[:5]))
    (prompt,) = echo.policy.prompts  # type: ignore[union-attr]
    assert [(m.role, m.content) for m in prompt] == [
        ("system", "Be brief."),
        *((m["role"], m["content"].strip()) for m in chat[:5]),
    ]


def test_an_agent_replies_only_after_initialize():
    """And only with a model that is named or given."""
    with pytest.raises(PolicyError, match=r"agent\.initialize\(\)"):
        run(MultiTurnAgent(AgentConfig(model_name="m")).generate_response("hi"))
    with pytest.raises(ConfigError, match="model_name"):
        run(MultiTurnAgent().initialize())
    with pytest.raises(PolicyError, match=r"the folder does not exist"):
        run(MultiTurnAgent.from_model("no/such/folder").initialize())
    with pytest.raises(PolicyError, match="renderer of the checkpoint"):
        run(MultiTurnAgent.from_model("openai-tokens+http://localhost:1/v1#m").initialize())


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "no messages"),
        ([{"role": "bot", "content": "x"}], "unknown role: bot in message 0"),
        ([{"speaker": "user", "content": "x"}], "unknown role: null in message 0"),
        ([{"role": "user", "content": 3}], "content is not text: int in message 0"),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}],
            "tool call without a function name: message 0",
        ),
    ],
)
def test_malformed_messages_are_refused(messages: list[dict[str, Any]], problem: str):
    """The error names the message."""
    with pytest.raises(DataError, match=problem):
        run(stub("x").generate_response(messages))


def test_the_seed_determines_the_reply(policy: TransformersPolicy):
    """The same seed gives the same reply, another seed another one; the next reply has a new seed."""
    first, same, other = (make_agent(policy, max_new_tokens=12, temperature=1.0, seed=s) for s in (1, 1, 5))
    reply = run(first.generate_response("hello"))
    assert reply == run(same.generate_response("hello"))
    assert reply != run(other.generate_response("hello"))
    assert reply != run(first.generate_response("hello"))


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"top_k": 1, "temperature": 5.0}, {"top_p": 1e-6}])
def test_greedy_settings_sample_the_likeliest_token(policy: TransformersPolicy, settings: dict[str, float]):
    """Temperature 0, top_k 1 and a tiny top_p give the same reply for every seed."""
    greedy = run(make_agent(policy, max_new_tokens=12, temperature=0).generate_response("hello"))
    for seed in (3, 4):
        drawn = {"max_new_tokens": 12, "temperature": 1.0, "seed": seed, **settings}
        assert run(make_agent(policy, **drawn).generate_response("hello")) == greedy


def test_a_window_shows_the_system_prompt_and_the_last_messages():
    """The last two of four messages."""
    agent = make_agent(Echo(), system_prompt="Be brief.", memory_window=2)
    roles = ("user", "assistant", "user", "user")
    run(agent.generate_response([{"role": r, "content": f"{k}"} for k, r in enumerate(roles)]))
    assert [m.content for m in agent.policy.prompts[0]] == ["Be brief.", "2", "3"]  # type: ignore[union-attr]


def test_a_custom_backend_needs_no_optional_package():
    """Any `Policy` object, in a process where transformers, tokenizers and torch cannot be imported."""
    code = """
import sys
for name in ("torch", "transformers", "tokenizers", "openai", "vllm"):
    sys.modules[name] = None
from tests.grpo.agents.fixtures import Echo, make_agent, roll_out, run
from grpo.renderers.byte_renderer import ByteRenderer
from grpo.agents.multi_turn import MultiTurnAgent
agent = make_agent(Echo())
assert run(agent.generate_response("hi")) == "You said: hi"
(trajectory,) = roll_out(MultiTurnAgent(), Echo(), ByteRenderer(), lines=["a", "b"], group_size=1)
assert [m.content for m in trajectory.messages] == ["a", "You said: a", "b", "You said: b"]
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_stub_agent_replies_without_torch():
    """Made by the factory and by the class, and ready without `initialize`."""
    code = """
import asyncio, sys
sys.modules["torch"] = sys.modules["transformers"] = sys.modules["tokenizers"] = None
from grpo.agents.multi_turn import create_agent
from grpo.config.agent import AgentConfig
agent = create_agent(AgentConfig(model_name="stub://demo", stub_responses=["a", "b"]))
async def main():
    await agent.initialize()
    return [await agent.generate_response("hi") for _ in range(3)]
assert asyncio.run(main()) == ["a", "b", "a"]
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_create_agent_makes_a_stub_from_stub_responses(tiny_folder: Path):
    """Otherwise an agent with a model; a stub without replies is refused."""
    config = AgentConfig(model_name="stub://demo", use_stub_model=True, stub_responses=("a",))
    assert run(create_agent(config).generate_response("hi")) == "a"
    agent = create_agent(AgentConfig(model_name=str(tiny_folder)))
    run(agent.initialize())
    assert isinstance(agent.policy, TransformersPolicy)
    with pytest.raises(ConfigError, match="stub_responses"):
        create_stub_agent(AgentConfig(model_name=str(tiny_folder)))


def test_set_policy_replaces_the_policy():
    """As a trainer does after an update."""
    agent = stub("a")
    agent.set_policy(Echo())
    assert run(agent.generate_response("hi")) == "You said: hi"


class Typist:
    """A backend that generates one text byte by byte."""

    hash, max_context = "typist", 10_000

    def __init__(self, text: str) -> None:
        self.text = text
        self.generated = 0

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[Typist]:
        yield self

    def open(self) -> Typist:
        return self

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        ids = [*self.text.encode(), ByteRenderer().stop_id]
        for token in ids:
            if prompt.on_token is not None:
                prompt.on_token(SampledToken(id=token, logprob=0.0))
            self.generated += 1
            await asyncio.sleep(0)
        return Generation(token_ids=ids, logprobs=None, stop="stop")

    def close(self) -> None:
        pass


async def _chunks(agent: MultiTurnAgent, text: str = "hello") -> list[str]:
    return [chunk async for chunk in agent.stream_response(text)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_streamed_chunks_join_to_the_whole_reply(policy: TransformersPolicy, temperature: float, seed: int):
    """Greedy and sampled, from a random model whose tokens are often incomplete characters."""
    settings = {"max_new_tokens": 24, "temperature": temperature, "seed": seed}
    whole = run(make_agent(policy, **settings).generate_response("hello"))
    chunks = run(_chunks(make_agent(policy, **settings)))
    assert "".join(chunks) == whole
    assert len(chunks) > 1


def test_the_first_chunk_is_sent_before_the_last_token_is_sampled():
    """At the first chunk fewer than four tokens are generated."""

    async def first() -> tuple[str, int]:
        typist = Typist("a long reply")
        agent = MultiTurnAgent(policy=typist)  # type: ignore[arg-type]
        await agent.initialize()
        stream = agent.stream_response("hello")
        chunk = await anext(stream)
        generated = typist.generated
        await stream.aclose()  # type: ignore[attr-defined]
        return chunk, generated

    chunk, generated = run(first())
    assert chunk == "a"
    assert generated < 4


def test_multi_byte_characters_are_sent_whole():
    """Each of é, 漢 and 🙂 is one chunk, though its bytes are separate tokens."""
    agent = make_agent(Typist("é漢🙂"))  # type: ignore[arg-type]
    assert run(_chunks(agent)) == ["é", "漢", "🙂"]


def test_reasoning_is_not_sent():
    """Only the answer after it."""
    agent = make_agent(Typist("<think>hm</think> yes"), enable_reasoning=True)  # type: ignore[arg-type]
    assert run(_chunks(agent)) == ["y", "e", "s"]


def test_white_space_around_a_reply_is_not_sent():
    """The reply is stripped; white space inside it is sent."""
    agent = make_agent(Typist("  a b  "))  # type: ignore[arg-type]
    assert run(_chunks(agent)) == ["a", " b"]


def test_a_backend_without_token_callbacks_sends_one_chunk():
    """A scripted policy returns the whole reply."""
    assert run(_chunks(stub("Hello there."))) == ["Hello there."]


def test_a_subclass_with_hooks_sends_one_chunk():
    """The sampled chunks are not the reply."""

    class Loud(MultiTurnAgent):
        async def generate_response(self, messages: Any, context: Any = None) -> str:
            return (await super().generate_response(messages, context)).upper()

    assert run(_chunks(make_agent(Typist("abc"), Loud))) == ["ABC"]  # type: ignore[arg-type]


def test_tool_calls_are_not_sent():
    """The reply is the text after the result."""
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    config = AgentConfig(use_stub_model=True, stub_responses=(call, "It is noon."))
    agent = ToolAgent(config, [{"name": "now", "function": lambda: 12}])
    run(agent.initialize())
    assert run(_chunks(agent)) == ["It is noon."]


def test_a_policy_error_is_raised_to_the_caller():
    """It is raised after the chunks that were sent."""

    class Broken(Typist):
        async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        run(_chunks(make_agent(Broken("x"))))  # type: ignore[arg-type]
