"""Texts that hold a whole chat are no question of a user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.chats import ChatFormatName
from grpo.config.scenarios import ChatSource, FileSource
from grpo.scenarios.readers.messages.transcripts import refuse_transcript
from grpo.scenarios.sources import read_records

CHATS = {
    "ChatML": ("<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>", "<|im_start|>user"),
    "Llama 2": ("<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\n2+2? [/INST] 4 </s>", r"\[INST\]"),
    "Gemma": ("<start_of_turn>user\n2+2?<end_of_turn>\n<start_of_turn>model\n4", "<start_of_turn>user"),
    "HH-RLHF": ("\n\nHuman: 2+2?\n\nAssistant: 4", "Human and Assistant"),
    "Guanaco": ("### Human: 2+2?### Assistant: 4", "### Human and ### Assistant"),
    "Glaive": ("SYSTEM: You have tools.\nUSER: 2+2?\n\n\nASSISTANT: 4", "USER and ASSISTANT"),
    "Alpaca's prompt": ("Below is a task.\n\n### Instruction:\n2+2?\n\n### Response:\n", "### Instruction:"),
    "a call centre": ("Customer: Where is it?\nAgent: Lost.", "Customer and Agent"),
}


@pytest.mark.parametrize(("text", "marks"), CHATS.values(), ids=CHATS)
def test_a_whole_chat_in_one_text_is_refused_with_its_marks(text: str, marks: str):
    """As a question, the user would also say what the agent replied."""
    with pytest.raises(ValueError, match=rf"^a whole chat in one text: in prompt, {marks}.* a list of messages with"):
        refuse_transcript(text, "prompt")


@pytest.mark.parametrize(
    "text",
    [
        "What does <|im_start|>assistant mean?",
        "User: a noun. What is a human?",
        "Summarize.\n\nCustomer: Where is it?\nAgent: Lost.",
        "Is the human: assistant ratio right?",
        "My agent: unknown\nCustomer: 7",
    ],
)
def test_a_question_that_mentions_a_turn_is_read(text: str):
    """Also one about a chat that it quotes after its own words."""
    refuse_transcript(text, "prompt")


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        ("prompt_completion", {"prompt": CHATS["HH-RLHF"][0], "completion": "Right."}),
        ("alpaca", {"instruction": CHATS["Guanaco"][0], "output": "Right."}),
        ("input_output", {"input": CHATS["ChatML"][0], "output": "Right."}),
        ("input_output", {"input": {"question": CHATS["ChatML"][0]}, "output": "Right."}),
    ],
)
def test_a_chat_of_each_format_of_questions_is_quarantined(tmp_path: Path, kind: ChatFormatName, record: Any):
    """Its line has the reason, and so has a column that is mapped to the user."""
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(record) + "\n" + json.dumps({"text": CHATS["Llama 2"][0]}))
    first, _ = read_records(ChatSource(kind=kind, path=str(path)))
    assert (first.problem or "").startswith("a whole chat in one text")
    _, second = read_records(FileSource(kind="jsonl", path=str(path), columns={"user_responses": "text"}))
    assert (second.problem or "").startswith("a whole chat in one text: in column text, [INST] and [/INST]")
