"""tau-bench few-shot: dialogues as plain text."""

from __future__ import annotations

import json
import re


def source(folder, *transcripts):
    """A folder with these dialogues."""
    rows = [{"messages_display": text} for text in transcripts]
    return folder({"MockRetailDomainEnv-few_shot.jsonl": rows})


def test_a_line_begins_with_its_speaker(folder, ingested):
    """A line without a speaker continues the turn; hidden calls and tool results are left out."""
    text = 'user: Hi,\nuserland is\nassistant: Who?\nuser: Ann\nassistant: None\ntool: {"user": "x"}\nassistant: Done.'
    _, (scenario,) = ingested("tau_bench_fewshot", source(folder, text))
    assert scenario.user_responses == ("Hi,\nuserland is", "Ann")
    assert scenario.expected.responses == ("Who?", "Done.")


def test_the_mark_of_the_end_is_left_out(folder, ingested):
    """The mark is after a text, or alone in its turn."""
    texts = ("user: Hi\nassistant: Yes?\nuser: Thanks!###STOP###", "user: Ho\nassistant: Yes?\nuser: ###STOP###")
    _, scenarios = ingested("tau_bench_fewshot", source(folder, *texts))
    assert [s.user_responses for s in scenarios] == [("Hi", "Thanks!"), ("Ho",)]


def test_text_without_speakers_is_quarantined(folder, ingested):
    """So is an empty user turn in the middle."""
    texts = ("user: Hi", "Once upon a time", "user: Hi\nassistant: A\nuser: \nassistant: B\nuser: C")
    counts, _ = ingested("tau_bench_fewshot", source(folder, *texts))
    assert (counts.records, counts.scenarios) == (3, 1)
    assert counts.reasons == {"no speaker": 1, "user_responses: user turn N is empty": 1}


def test_every_published_dialogue_is_a_scenario(published, ingested):
    """69 dialogues with 533 user turns, 2 of which are the mark of the end alone."""
    folder = published("tau_bench_fewshot")
    lines = (folder / "MockRetailDomainEnv-few_shot.jsonl").read_text().splitlines()
    texts = [json.loads(line)["messages_display"] for line in lines]
    counts, scenarios = ingested("tau_bench_fewshot", folder)
    assert counts.records == counts.scenarios == len(texts) == 69
    turns = sum(len(re.findall(r"(?m)^user:", text)) for text in texts)
    marks = sum(len(re.findall(r"(?m)^user: ###STOP###$", text)) for text in texts)
    assert (turns, marks) == (533, 2)
    assert sum(len(s.user_responses) for s in scenarios) == turns - marks
    assert not any("###STOP###" in turn for s in scenarios for turn in s.user_responses)
