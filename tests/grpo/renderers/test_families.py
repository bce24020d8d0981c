"""Families of the package `renderers` (Apache-2.0), whose hand-written renderers are an independent reference.

It encodes the texts of messages with control tokens, so it is a reference for benign texts alone. Its gpt-oss needs a
vocabulary from the network; its families without a template in TRL are not here.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import renderers as reference

from grpo.messages import Message
from grpo.renderers.chat_template import Renderer
from tests.grpo.renderers import published
from tests.grpo.renderers.conversations import ERRAND, LOOK_UP, without_reasoning

AS_GENERATED = "{#- turns as generated #}"
FAMILIES = {
    "qwen3": ("Qwen/Qwen3-0.6B", ""),
    "qwen3_instruct_2507": ("Qwen/Qwen3-0.6B", ""),
    "qwen3_vl": ("Qwen/Qwen3-VL-8B-Instruct", ""),
    "qwen3_5_think": ("Qwen/Qwen3.5-9B", ""),
    "qwen3_6": ("Qwen/Qwen3.6-35B-A3B", ""),
    "qwen3_8": ("Qwen/Qwen3.8-27B", ""),
    "gemma4": ("google/gemma-4-E2B-it", ""),
    "nemotron_3_nano": ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", ""),
    "llama3_2": ("meta-llama/Llama-3.2-1B-Instruct", '{%- set date_string = "26 Jul 2024" %}\n'),
    "glm4moe": ("zai-org/GLM-4.5-Air", AS_GENERATED),
}
"""Template of TRL, the model of the reference, and what stands in front of the template."""
_TOKENS = (
    "<|endoftext|>", "<|image>", "<image|>", "<|audio>", "<audio|>", "<|video>", "<video|>", "<|begin_of_text|>",
    "<|finetune_right_pad_id|>", "<|eom_id|>", "<|python_tag|>", "[gMASK]", "<sop>", "<|vision_start|>",
    "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
    "<|think|>", "/nothink", "<|end_of_text|>", "<|tool_call>", "<tool_call>", "</tool_call>",
)  # fmt: skip
"""Tokens that the reference asks for."""


@cache
def _pair(name: str) -> tuple[Renderer, Any]:
    model, first_line = FAMILIES[name]
    end = str(published.of_family(name).eos_token)
    more = tuple(token for token in _TOKENS if token != end)
    tokenizer = published.tokenizer(first_line + published.template(name), end=end, more=more)
    if name == "llama3_2":
        tokenizer.bos_token = "<|begin_of_text|>"
    tokenizer.name_or_path = model
    keeping = None if name in ("qwen3_vl", "gemma4", "llama3_2") else "all"
    made = reference.create_renderer(tokenizer, reference.AutoRendererConfig(thinking_retention=keeping))
    return Renderer(tokenizer, tools=(LOOK_UP,)), made


def _to_reference(message: Message) -> dict[str, Any]:
    converted = message.to_template()
    if message.tool_calls:
        converted["tool_calls"] = [{**call, "id": "c1"} for call in converted["tool_calls"]]
    if message.role == "tool":
        converted |= {"name": "look_up", "tool_call_id": "c1"}
    return converted | ({"reasoning_content": message.reasoning} if message.reasoning else {})


@pytest.mark.parametrize("name", FAMILIES)
def test_a_prompt_is_that_of_the_reference(name: str):
    """A system message, a tool and a question, token for token."""
    renderer, made = _pair(name)
    expected = made.render_ids(
        [_to_reference(message) for message in ERRAND[:2]], tools=[LOOK_UP.to_template()], add_generation_prompt=True
    )
    assert renderer.build_prompt(ERRAND[:2]) == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_a_conversation_is_extended_as_the_reference_bridges_it(name: str):
    """After a call and after a reply, with reasoning where the family has it; the call is parsed alike."""
    renderer, made = _pair(name)
    errand = ERRAND if renderer.reasons else without_reasoning(ERRAND)
    tools = [LOOK_UP.to_template()]
    ids = renderer.build_prompt(errand[:2])
    for turn in (2, 4):
        reply = renderer.encode_reply(errand[turn], errand[:turn])
        if turn == 2:
            parsed = made.parse_response(reply, tools=tools, prompt_ids=ids)
            assert [(call.name, call.arguments) for call in parsed.tool_calls] == [
                (call.name, call.arguments) for call in renderer.parse_reply(reply).tool_calls
            ]
        bridged = made.bridge_to_next_turn(ids, reply, [_to_reference(errand[turn + 1])], tools=tools)
        new = renderer.build_continuation(errand[: turn + 1], errand[turn + 1 : turn + 2], ended_by=reply[-1])
        assert bridged is not None
        assert [*ids, *reply, *new] == list(getattr(bridged, "token_ids", bridged))
        ids = [*ids, *reply, *new]
