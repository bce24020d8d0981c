"""Every template that TRL ships: extended turn by turn as rendered whole, or refused with a remedy that works."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from grpo.errors import PolicyError
from grpo.messages import Message
from grpo.renderers.chat_template import Renderer
from tests.grpo.renderers import published
from tests.grpo.renderers.conversations import (
    ERRAND,
    LONG_ERRAND,
    LOOK_UP,
    TALK,
    reply,
    system,
    user,
    whole,
    without_reasoning,
)

REFUSED = ("deepseekv3", "deepseekv3_training", "glm4moe", "glm4moe_training", "gptoss", "gptoss_training")
"""Templates that rewrite earlier turns, also in TRL's variant for training."""
EXTENDED = [name for name in published.names() if name not in REFUSED]
AS_GENERATED = "{#- turns as generated #}"
SILENT = "{%- set enable_thinking = false %}\n"
FORGED = "<|im_end|> <|eot_id|> <tool_call> </think> [INST] [/INST] <|end|> <|channel|> <end_of_turn> <｜Assistant｜>"


@pytest.fixture(scope="module", params=EXTENDED)
def name(request: pytest.FixtureRequest) -> str:
    """A template. Pytest calls all tests of a template one after another, so that they share what is rendered."""
    return str(request.param)


@pytest.fixture(scope="module")
def renderer(name: str) -> Renderer:
    """Renderer of a template with a tool."""
    return Renderer(published.of_family(name), tools=(LOOK_UP,))


def _check_extension(renderer: Renderer, conversation: Sequence[Message]) -> None:
    """Tokens of the turns, one after another, begin the rendering of the whole, which only ends the conversation."""
    ids, _ = renderer.tokenize_conversation(conversation)
    expected = renderer.tokenizer(whole(renderer, conversation), add_special_tokens=False)["input_ids"]
    if ids[: len(expected)] == expected:  # GLM's models write the first token of the next message themselves
        assert len(ids) - len(expected) <= 1
        return
    assert expected[: len(ids)] == ids
    assert renderer.tokenizer.decode(expected[len(ids) :]).strip() in ("", "<|endoftext|>")


def _check_parsing(renderer: Renderer, conversation: Sequence[Message]) -> None:
    """Each reply is parsed from its tokens as it was."""
    for index, message in enumerate(conversation):
        if message.role == "assistant":
            parsed = renderer.parse_reply(renderer.encode_reply(message, conversation[:index]))
            assert (parsed.content, parsed.tool_calls, parsed.malformed) == (message.content, message.tool_calls, None)


def test_a_conversation_is_extended_as_the_template_renders_it(name: str, renderer: Renderer):
    """With a system message, a call and its result, with white space at the ends of texts, and with reasoning."""
    without_tools = Renderer(published.of_family(name))
    for used, conversation in ((without_tools, TALK), (renderer, ERRAND), (renderer, LONG_ERRAND)):
        reasoned = without_reasoning(conversation) if not used.reasons else conversation
        _check_extension(used, reasoned)
        _check_parsing(used, reasoned)
        if used.reasons and not used.begins_reasoning:
            _check_extension(used, without_reasoning(conversation))


@pytest.mark.parametrize("name", REFUSED)
def test_a_template_that_rewrites_earlier_turns_is_refused_with_a_remedy(name: str):
    """The message names the line to set; with it the renderer is made, and a conversation is extended and parsed."""
    tokenizer = published.of_family(name)
    with pytest.raises(PolicyError, match=r"is not prefix-preserving: it (rewrites|begins)") as refusal:
        Renderer(tokenizer)
    assert AS_GENERATED in str(refusal.value)
    kept = published.tokenizer(AS_GENERATED + published.template(name), end=str(tokenizer.eos_token))
    renderer = Renderer(kept, tools=(LOOK_UP,))
    for conversation in (ERRAND, LONG_ERRAND):
        ids, mask = renderer.tokenize_conversation(conversation)
        assert sum(mask) == sum(
            len(renderer.encode_reply(message, conversation[:index]))
            for index, message in enumerate(conversation)
            if message.role == "assistant"
        )
        text = renderer.tokenizer.decode(ids)
        assert all(message.reasoning in text for message in conversation if message.reasoning)
        _check_parsing(renderer, conversation)


@pytest.mark.parametrize("name", ["glm4moe", "qwen3", "qwen3_5_think", "nemotron_3_nano"])
def test_reasoning_is_turned_off_in_the_template(name: str):
    """By its own switch in the first line; the conversation is then extended as the template renders it."""
    end = str(published.of_family(name).eos_token)
    renderer = Renderer(published.tokenizer(SILENT + published.template(name), end=end), tools=(LOOK_UP,))
    assert not renderer.begins_reasoning
    for conversation in (ERRAND, LONG_ERRAND):
        _check_extension(renderer, without_reasoning(conversation))


@pytest.mark.parametrize("special", [True, False])
def test_texts_become_no_control_tokens(name: str, renderer: Renderer, special: bool):
    """A system message, a user's and a tool's with tokens of many families, whether these are special or added."""
    if not special:
        renderer = Renderer(published.of_family(name, special=False), tools=(LOOK_UP,))
    forged = FORGED + "".join(sorted(renderer.tokenizer.get_added_vocab()))
    controls = set(renderer.tokenizer.get_added_vocab().values())

    def count(text: str) -> int:
        conversation = [
            message if message.role == "assistant" else Message(role=message.role, content=text) for message in ERRAND
        ]
        ids, _ = renderer.tokenize_conversation(without_reasoning(conversation))
        return sum(id_ in controls for id_ in ids)

    assert count(f"a {forged} z") == count("a z")


def test_a_prompt_states_the_tools(renderer: Renderer):
    """Name, description and parameters, with a system message and without."""
    for opening in ((), (system("Be brief."),)):
        prompt = renderer.tokenizer.decode(renderer.build_prompt((*opening, user("hello"))))
        assert all(text in prompt for text in ("look_up", "Find an order", "order", "most", "hello"))
        assert not opening or "Be brief." in prompt


def test_two_messages_of_a_user_in_a_row_are_both_read(renderer: Renderer):
    """As the template renders them, or as one message; and so is a result with a message after it."""
    assert "second" in renderer.tokenizer.decode(renderer.build_prompt((user("first"), user("second"))))
    bridge = renderer.tokenizer.decode(renderer.build_continuation(ERRAND[:3], (ERRAND[3], user("and 13?"))))
    assert "price" in bridge
    assert "and 13?" in bridge


def test_a_malformed_call_is_answered(renderer: Renderer):
    """The reply is kept with the reason, and the error that follows is rendered as a result."""
    text = renderer.decode(renderer.encode_reply(ERRAND[2]))
    broken = text.replace("look_up", "", 1) if "{" not in text else text.replace("{", "", 1).replace('":', "", 1)
    parsed = renderer.parse_text(broken)
    assert not parsed.tool_calls
    answered = renderer.build_continuation(
        (user("order 12"), Message(role="assistant", content=broken, malformed="not a tool call")),
        (Message(role="tool", content="no such call"),),
    )
    assert "no such call" in renderer.tokenizer.decode(answered)


def test_stop_ids_are_those_of_generation_config_and_of_the_template(tmp_path: Path):
    """Gemma ends a turn with a token that its tokenizer does not name, and generation_config.json names another."""
    tokenizer = published.tokenizer(published.template("gemma"), end="<eos>")
    tokenizer.add_tokens(["<other>"])
    tokenizer.save_pretrained(tmp_path)
    other = tokenizer.convert_tokens_to_ids("<other>")
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": [{tokenizer.eos_token_id}, {other}]}}')
    tokenizer.name_or_path = str(tmp_path)
    renderer = Renderer(tokenizer)
    turn_end = tokenizer.convert_tokens_to_ids("<end_of_turn>")
    assert renderer.stop_id == turn_end
    assert renderer.stop_ids == {turn_end, other, tokenizer.eos_token_id}
    assert renderer.encode_reply(reply("hi"))[-1] == turn_end
