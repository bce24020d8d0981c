from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.agents.memory import ConversationMemory
from grpo.errors import ConfigError, DataError
from tests.grpo.agents.fixtures import Echo, make_agent, run, stub
from tests.places import ROOT


def _filled(turns: int, **settings: int) -> ConversationMemory:
    memory = ConversationMemory(**settings)
    for k in range(turns):
        memory.add("user" if k % 2 == 0 else "assistant", f"Parcel {k} is lost.")
    return memory


@pytest.mark.parametrize(("turns", "summaries"), [(50, 0), (51, 1), (100, 1), (101, 2)])
def test_turn_fifty_one_makes_one_summary_and_turn_one_hundred_and_one_the_next(turns: int, summaries: int):
    """One summary for each fifty turns that another turn follows."""
    assert len(_filled(turns).summaries()) == summaries


def test_a_summary_covers_the_turns_before_the_one_that_triggers_it():
    """Threshold 2: turn 3 summarizes turns 1 and 2."""
    (summary,) = _filled(3, max_turns=5, summarization_threshold=2).summaries()
    assert summary == "Parcel 0 is lost. Parcel 1 is lost."


def test_at_most_max_turns_are_stored():
    """The oldest are dropped; their summary is kept."""
    memory = _filled(8, max_turns=4, summarization_threshold=3)
    assert [text for _, text in memory.turns()] == [f"Parcel {k} is lost." for k in (4, 5, 6, 7)]
    assert "Parcel 0" in memory.summaries()[0]


def test_recall_ranks_texts_by_rare_shared_words():
    """Three texts share parcel, one shares lamp: log(1 + 3/1) + log(1 + 3/3) beats log(1 + 3/3)."""
    memory = ConversationMemory()
    for text in ("The parcel came.", "The lamp in the parcel broke.", "A parcel again."):
        memory.add("user", text)
    assert memory.recall("Which lamp was in the parcel?") == [
        "The lamp in the parcel broke.",
        "A parcel again.",
        "The parcel came.",
    ]
    assert memory.recall("Which lamp was in the parcel?", limit=1) == ["The lamp in the parcel broke."]
    assert memory.recall("parcel", exclude={"A parcel again."})[0] == "The lamp in the parcel broke."
    assert memory.recall("What is the time?") == []


def test_users_do_not_share_a_memory():
    """Neither turns nor recall."""
    memory = ConversationMemory()
    memory.add("user", "My order is 4711.", user_id="ada")
    assert memory.recall("order", user_id="ada") == ["My order is 4711."]
    assert memory.recall("order", user_id="bob") == memory.recall("order") == []


def test_a_fact_of_one_conversation_is_recalled_in_the_next():
    """It is in the system prompt; texts of the conversation itself are not repeated."""
    agent = make_agent(Echo())
    agent.memory = ConversationMemory()
    run(agent.generate_response("My order number is 4711."))
    run(agent.generate_response("What was my order number?"))
    first, second = agent.policy.prompts  # type: ignore[union-attr]
    assert [m.role for m in first] == ["user"]
    assert second[0].role == "system"
    assert "From earlier conversations:\n" in second[0].content
    assert "- My order number is 4711." in second[0].content
    assert agent.memory.turns()[:2] == [
        ("user", "My order number is 4711."),
        ("assistant", "You said: My order number is 4711."),
    ]


def test_a_saved_memory_is_loaded_by_another_process(tmp_path: Path):
    """Turns, summaries, and the number of turns without a summary."""
    path = tmp_path / "memory.json"
    code = f"""
from grpo.agents.memory import ConversationMemory
memory = ConversationMemory(path={str(path)!r}, max_turns=5, summarization_threshold=2)
for text in ("My order is 4711.", "It is a lamp.", "It is green."):
    memory.add("user", text, user_id="ada")
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    memory = ConversationMemory(path=path, max_turns=5, summarization_threshold=2)
    assert "My order is 4711." in memory.recall("Which order?", user_id="ada")
    assert len(memory.summaries("ada")) == 1
    memory.add("user", "And new.", user_id="ada")
    assert len(memory.summaries("ada")) == 1  # 2 turns that no summary covers, not more than the threshold
    memory.add("user", "Thanks.", user_id="ada")
    assert len(memory.summaries("ada")) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["memory.json"]


@pytest.mark.parametrize("content", ["", "[]", '{"format": 2, "owners": {}}', '{"format": 1, "owners": {"a": 3}}'])
def test_a_file_that_is_not_a_memory_is_refused(tmp_path: Path, content: str):
    """The message names the file."""
    path = tmp_path / "memory.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"memory\.json"):
        ConversationMemory(path=path)
    assert path.read_text() == content


def test_incompatible_sizes_are_refused():
    """Dropped turns cannot be summarized."""
    for sizes in ({"summarization_threshold": 0}, {"max_turns": 50}):
        with pytest.raises(ConfigError, match="summarization_threshold"):
            ConversationMemory(**sizes)
    with pytest.raises(DataError, match="'bot'"):
        ConversationMemory().add("bot", "x")


def test_the_file_is_readable_json(tmp_path: Path):
    """Non-ASCII letters are not escaped."""
    agent = stub("Grüß Gott.")
    agent.memory = ConversationMemory(path=tmp_path / "memory.json")
    run(agent.generate_response("hi"))
    text = (tmp_path / "memory.json").read_text(encoding="utf-8")
    assert "Grüß Gott." in text
    assert json.loads(text)["owners"][""]["turns"] == [["user", "hi"], ["assistant", "Grüß Gott."]]
