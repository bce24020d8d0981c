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
from grpo.errors import DataError, PolicyError
from grpo.learner.batch import build_batch
from grpo.messages import Message
from grpo.policy.policy import Prompt, Sampling
from grpo.policy.scripted import ScriptedPolicy, read_replies
from grpo.policy.transformers.model import load_tokenizer
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Trajectory, group
from tests.places import DESK_MODEL


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(load_tokenizer(DESK_MODEL), tools=SupportDesk.tools)


def _says(policy: ScriptedPolicy, renderer: Renderer, *, seed: int, turns: int, tokens: int = 99) -> list[str]:
    async def run() -> list[str]:
        async with policy.sampler(concurrency=1, renderer=renderer) as sampler:
            session = sampler.open()
            sampling = Sampling(temperature=1.0, max_new_tokens=tokens, seed=seed)
            said = [await session.generate(Prompt(new_ids=[]), sampling) for _ in range(turns)]
        return [renderer.parse_reply(one.token_ids).content + ("" if one.stop == "stop" else " …") for one in said]

    return asyncio.run(run())


def _play(policy: ScriptedPolicy, renderer: Renderer, *, group_size: int = 1) -> list[Trajectory]:
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


def test_replies_follow_each_other_and_begin_again(renderer: Renderer):
    """Whatever the seed, where there is one script."""
    policy = ScriptedPolicy(["Hello.", "Bye."])
    assert _says(policy, renderer, seed=0, turns=3) == ["Hello.", "Bye.", "Hello."]
    assert _says(policy, renderer, seed=1, turns=3) == ["Hello.", "Bye.", "Hello."]


def test_the_seed_picks_one_of_several_scripts(renderer: Renderer):
    """Even seeds the first, odd ones the second."""
    policy = ScriptedPolicy([["Hello.", "Bye."], ["No."]])
    assert _says(policy, renderer, seed=2, turns=2) == ["Hello.", "Bye."]
    assert _says(policy, renderer, seed=3, turns=2) == ["No.", "No."]


def test_a_reply_that_is_too_long_is_cut_as_a_turn_of_any_policy_is(renderer: Renderer):
    """Two tokens of it, and the turn did not end by itself."""
    (said,) = _says(ScriptedPolicy(["Hello. Hello. Hello."]), renderer, seed=0, turns=1, tokens=2)
    whole = renderer.encode_reply(Message(role="assistant", content="Hello. Hello. Hello."))
    assert said == renderer.parse_reply(whole[:2]).content + " …"


def test_a_written_tool_call_reaches_the_world(renderer: Renderer):
    """The call is run, and its result is heard."""
    call = '<tool_call>{"name": "look_up", "arguments": {"order": "1234"}}</tool_call>'
    orders = {"1234": {"item": "lamp", "state": "delivered"}}
    (played,) = collect(
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
    assert [m.role for m in played.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert '"lamp"' in played.messages[3].content
    assert played.outcome is not None
    assert played.outcome.checks["looked_up"]


def test_what_was_scripted_cannot_be_trained_on(renderer: Renderer):
    """Its log-probabilities are unknown, not 0, and the learner says what such a policy is good for."""
    played = _play(ScriptedPolicy(["Hello."]), renderer, group_size=2)
    for one in played:
        assert np.array_equal(np.isnan(one.sampler_logprobs), one.loss_mask)
    with pytest.raises(DataError, match="can be evaluated, not trained on"):
        build_batch(group(played), TrainingSettings(), policy_hash=played[0].policy_hash)


def test_the_hash_names_the_script():
    """Other words, another policy."""
    assert ScriptedPolicy(["a"]).hash == ScriptedPolicy([["a"]]).hash != ScriptedPolicy(["b"]).hash


def test_replies_are_read_from_a_file(tmp_path: Path):
    """A list of texts, or a list of such lists."""
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
def test_a_file_that_holds_no_replies_is_refused(tmp_path: Path, text: str, problem: str):
    """The message names the file and what was found."""
    path = tmp_path / "replies.yaml"
    path.write_text(text)
    with pytest.raises(PolicyError, match=problem) as caught:
        read_replies(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["absent.yaml", "replies.txt", "a/../replies.yaml"])
def test_only_a_yaml_file_that_is_there_is_read(tmp_path: Path, name: str):
    """No other kind of file, and none by a path that climbs."""
    with pytest.raises(PolicyError, match=r"replies"):
        read_replies(tmp_path / name)
