from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo.agents.agent import Agent
from grpo.agents.memory import ConversationMemory
from grpo.agents.multi_turn import MultiTurnAgent, create_agent, create_stub_agent
from grpo.config.agent import AgentConfig
from grpo.errors import ConfigError, DataError, PolicyError
from grpo.policy.transformers.model import TransformersPolicy, load
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
    with pytest.raises(PolicyError, match=r"there is no such folder"):
        run(MultiTurnAgent.from_model("no/such/folder").initialize())
    with pytest.raises(PolicyError, match="renderer of the checkpoint"):
        run(MultiTurnAgent.from_model("openai-tokens+http://localhost:1/v1#m").initialize())


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "no messages"),
        ([{"role": "bot", "content": "x"}], "role 'bot' is unknown"),
        ([{"speaker": "user", "content": "x"}], "got content, speaker"),
        ([{"role": "user", "content": 3}], "is a int"),
        ([{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}], "a tool call is"),
    ],
)
def test_malformed_messages_are_refused(messages: list[dict[str, Any]], problem: str):
    """The message names the expected keys."""
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
