"""Rollouts of an environment with tools, in the chat format of each family."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from grpo.config.rollout import RolloutSettings
from grpo.environments.task import TaskEnvironment
from grpo.policy.scripted import ScriptedPolicy
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.trajectories import Trajectory
from tests.grpo.renderers import published

FAMILIES = {
    "qwen3": "",
    "qwen3_5_think": "",
    "llama3_1": "",
    "gemma": "",
    "gemma4": "",
    "lfm2_v2": "",
    "phi3_5": "",
    "nemotron_3_nano": "",
    "deepseek_r1_distill": "",
    "muse_glimmer": "",
    "glm4moe": "{%- set enable_thinking = false %}\n",
    "gptoss": "{#- turns as generated #}",
    "deepseekv3": "{#- turns as generated #}",
}
CALL = '<tool_call>{"name": "look", "arguments": {"order": "12"}}</tool_call>'
BROKEN = '<tool_call>{"name": "look"</tool_call>'


def look(state: Mapping[str, Any], order: str) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Look up an order."""
    return state, {"order": order, "text": "ready <|im_end|>"}


def _play(name: str, replies: list[str]) -> tuple[Renderer, Trajectory]:
    end = str(published.of_family(name).eos_token)
    tokenizer = published.tokenizer(FAMILIES[name] + published.template(name), end=end)
    scenario = Scenario(id="s", user_responses=("Where is order 12?", "Thanks."))
    environment = TaskEnvironment(
        [scenario], functions=(look,), criteria={"never": lambda _: False}, system_prompt="Be brief."
    )
    renderer = Renderer(tokenizer, tools=environment.tools)
    (trajectory,) = collect(
        [scenario], ScriptedPolicy(replies), environment, renderer,
        RolloutSettings(max_context=8000, max_new_tokens=500),
        group_size=1, temperature=1.0, run_seed=0, iteration=0,
    )  # fmt: skip
    assert trajectory.error is None
    return renderer, trajectory


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tool_is_called_in_the_format_of_the_family(name: str):
    """The call is run and its result read; the recorded tokens are those of the conversation."""
    renderer, trajectory = _play(name, [CALL, "It is ready.", "Bye."])
    roles = [message.role for message in trajectory.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user", "assistant"]
    assert json.loads(trajectory.messages[3].content)["order"] == "12"
    ids, mask = renderer.tokenize_conversation(trajectory.messages)
    assert trajectory.token_ids.tolist() == ids
    assert trajectory.loss_mask.tolist() == mask


@pytest.mark.parametrize("name", FAMILIES)
def test_a_malformed_call_is_reported_to_the_model(name: str):
    """As a result with the reason, in each family; the conversation goes on."""
    renderer, trajectory = _play(name, [BROKEN, CALL, "It is ready.", "Bye."])
    assert trajectory.messages[2].malformed is not None
    assert "not a tool call" in json.loads(trajectory.messages[3].content)["error"]
    assert "not a tool call" in renderer.tokenizer.decode(trajectory.token_ids.tolist())
    assert trajectory.messages[4].tool_calls


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "nemotron_3_nano", "gptoss"])
def test_the_environment_reads_no_reasoning(name: str):
    """It stays in the tokens of the turn and apart from the reply."""
    thinking = {
        "gptoss": "<|channel|>analysis<|message|>a secret<|end|><|start|>assistant<|channel|>final<|message|>Hello.",
    }.get(name, "<think>\na secret\n</think>\n\nHello.")
    renderer, trajectory = _play(name, [thinking])
    reply = trajectory.messages[2]
    assert (reply.content, reply.reasoning) == ("Hello.", "a secret")
    turn = trajectory.turns[2]
    assert "a secret" in renderer.tokenizer.decode(trajectory.token_ids[turn.start : turn.stop].tolist())
