from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from grpo.config.loading import MOST_BYTES
from grpo.config.rollout import RolloutSettings
from grpo.config.training import TrainingSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.support_desk.desk import SupportDesk
from grpo.errors import ConfigError, DataError, PolicyError
from grpo.learner.batch import build_batch
from grpo.messages import Message
from grpo.policy.policy import Prompt, Sampling
from grpo.policy.scripted import ScriptedPolicy, read_replies
from grpo.policy.tokenizer import load_tokenizer
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.trajectories import Trajectory, group
from tests.places import DESK_MODEL


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(load_tokenizer(DESK_MODEL), tools=SupportDesk.tools)


def _replies(policy: ScriptedPolicy, renderer: Renderer, *, seed: int, turns: int, tokens: int = 99) -> list[str]:
    async def run() -> list[str]:
        async with policy.sampler(concurrency=1, renderer=renderer) as sampler:
            session = sampler.open()
            sampling = Sampling(temperature=1.0, max_new_tokens=tokens, seed=seed)
            generations = [await session.generate(Prompt(new_ids=[]), sampling) for _ in range(turns)]
        return [renderer.parse_reply(g.token_ids).content + ("" if g.stop == "stop" else " …") for g in generations]

    return asyncio.run(run())


def _collect(policy: ScriptedPolicy, renderer: Renderer, *, group_size: int = 1) -> list[Trajectory]:
    return collect(
        [Scenario(id="s", user_responses=("hello", "my order", "bye"))],
        policy,
        ConversationEnvironment(),
        renderer,
        RolloutSettings(),
        group_size=group_size,
        temperature=1.0,
        run_seed=0,
        iteration=0,
    )


def test_a_script_is_cycled_through(renderer: Renderer):
    """For every seed, if there is one script."""
    policy = ScriptedPolicy(["Hello.", "Bye."])
    assert _replies(policy, renderer, seed=0, turns=3) == ["Hello.", "Bye.", "Hello."]
    assert _replies(policy, renderer, seed=1, turns=3) == ["Hello.", "Bye.", "Hello."]


def test_the_seed_selects_one_of_several_scripts(renderer: Renderer):
    """Even seeds the first, odd seeds the second."""
    policy = ScriptedPolicy([["Hello.", "Bye."], ["No."]])
    assert _replies(policy, renderer, seed=2, turns=2) == ["Hello.", "Bye."]
    assert _replies(policy, renderer, seed=3, turns=2) == ["No.", "No."]


def test_a_long_reply_is_truncated_at_max_new_tokens(renderer: Renderer):
    """Two tokens of it, with stop reason length."""
    (reply,) = _replies(ScriptedPolicy(["Hello. Hello. Hello."]), renderer, seed=0, turns=1, tokens=2)
    full = renderer.encode_reply(Message(role="assistant", content="Hello. Hello. Hello."))
    assert reply == renderer.parse_reply(full[:2]).content + " …"


def test_a_scripted_tool_call_reaches_the_environment(renderer: Renderer):
    """The call is run, and its result is in the trajectory."""
    call = '<tool_call>{"name": "look_up", "arguments": {"order": "1234"}}</tool_call>'
    orders = {"1234": {"item": "lamp", "state": "delivered"}}
    (trajectory,) = collect(
        [Scenario(id="s", user_responses=("Where is order 1234?",), world={"orders": orders})],
        ScriptedPolicy([call, "It was delivered."]),
        SupportDesk(),
        renderer,
        RolloutSettings(),
        group_size=1,
        temperature=1.0,
        run_seed=0,
        iteration=0,
    )
    assert [m.role for m in trajectory.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert '"lamp"' in trajectory.messages[3].content
    assert trajectory.outcome is not None
    assert trajectory.outcome.checks["looked_up"]


def test_scripted_episodes_cannot_be_trained_on(renderer: Renderer):
    """Their log-probabilities are NaN, not 0, and the learner's message names the reason."""
    trajectories = _collect(ScriptedPolicy(["Hello."]), renderer, group_size=2)
    for trajectory in trajectories:
        assert np.array_equal(np.isnan(trajectory.sampler_logprobs), trajectory.loss_mask)
    with pytest.raises(DataError, match="can be evaluated, not trained on"):
        build_batch(group(trajectories), TrainingSettings(), policy_hash=trajectories[0].policy_hash)


def test_the_hash_depends_on_the_script():
    """Other replies, another policy."""
    assert ScriptedPolicy(["a"]).hash == ScriptedPolicy([["a"]]).hash != ScriptedPolicy(["b"]).hash


def test_replies_are_read_from_a_file(tmp_path: Path):
    """A list of strings, or a list of such lists."""
    path = tmp_path / "replies.yaml"
    path.write_text("[Hello., Bye.]")
    assert read_replies(path) == [["Hello.", "Bye."]]
    path.write_text("- [Hello., Bye.]\n- ['No.']")
    assert read_replies(path) == [["Hello.", "Bye."], ["No."]]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "got list"),
        ("[[]]", "none empty"),
        ("[1, 2]", "expected a list of texts"),
        ("[a, [b]]", "expected a list of texts"),
        ("a: b", "got dict"),
        ("[a", "no replies can be read"),
        ("!!python/object/apply:os.system [ls]", "no replies can be read"),
        pytest.param("x" * (MOST_BYTES + 1), "at most 1,048,576", id="too large"),
    ],
)
def test_a_file_without_replies_is_refused(tmp_path: Path, text: str, problem: str):
    """The message names the file and its content."""
    path = tmp_path / "replies.yaml"
    path.write_text(text)
    with pytest.raises(PolicyError, match=problem) as error_info:
        read_replies(path)
    assert str(path) in str(error_info.value)


@pytest.mark.parametrize("name", ["absent.yaml", "replies.txt", "a/../replies.yaml"])
def test_only_an_existing_yaml_file_is_read(tmp_path: Path, name: str):
    """Neither another suffix nor a path with '..'."""
    with pytest.raises(PolicyError, match=r"replies"):
        read_replies(tmp_path / name)


def test_a_script_has_no_likeliest_tokens(renderer: Renderer):
    """An error, not an empty list."""

    async def run() -> None:
        async with ScriptedPolicy(["Hello."]).sampler(concurrency=1, renderer=renderer) as sampler:
            sampling = Sampling(temperature=1.0, max_new_tokens=9, seed=0, top_logprobs=1)
            await sampler.open().generate(Prompt(new_ids=[]), sampling)

    with pytest.raises(ConfigError, match="top_logprobs 1"):
        asyncio.run(run())
