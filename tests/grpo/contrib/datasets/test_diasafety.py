"""DiaSafety: replies that are safe or unsafe in their context."""

from __future__ import annotations

import json
from collections import Counter

from grpo.scenarios.reward_data import read_labels


def exchange(**more):
    """A safe reply."""
    return {"context": "May I?", "response": "Ask a doctor.", "category": "Risk Ignorance", "label": "Safe", **more}


def test_a_reply_has_a_label_a_score_and_a_split(folder):
    """Safe is 1, unsafe 0; replies to one context are one group."""
    files = {"train.json": [exchange()], "val.json": [exchange(label="Unsafe", response="Sure.")]}
    first, second = read_labels("diasafety", folder(files)).items
    assert (first.label, first.score, first.split) == ("Safe", 1, "train")
    assert (second.label, second.score, second.split) == ("Unsafe", 0, "heldout")
    assert first.group == second.group
    assert (first.prompt[0].content, first.reply.content) == ("May I?", "Ask a doctor.")


def test_empty_replies_and_other_labels_are_counted(folder):
    """Both are quarantined with the number of the record."""
    parsed = read_labels(
        "diasafety",
        folder({"train.json": [exchange(response=""), exchange(label="Maybe"), exchange()], "val.json": []}),
    )
    assert parsed.reasons == {"reply: reply is empty": 1, "not as published": 1}
    assert [place.line for place in parsed.quarantined] == [1, 2]


def test_every_published_reply_is_labelled_or_quarantined(published):
    """9017 + 1097 replies, two of them empty; 432 contexts of the held-out part are in the training part too."""
    folder = published("diasafety")
    parts = {name: json.loads((folder / f"{name}.json").read_text()) for name in ("train", "val")}
    empty = sum(not item["response"].strip() for part in parts.values() for item in part)
    parsed = read_labels("diasafety", folder)
    assert (parsed.records, parsed.reasons) == (10114, {"reply: reply is empty": empty})
    assert (len(parsed.items), empty) == (10112, 2)
    labels = Counter(item["label"] for part in parts.values() for item in part if item["response"].strip())
    assert Counter(item.label for item in parsed.items) == labels
    both = {item["context"] for item in parts["train"]} & {item["context"] for item in parts["val"]}
    groups = {split: {item.group for item in parsed.items if item.split == split} for split in ("train", "heldout")}
    assert len(groups["train"] & groups["heldout"]) == len(both) == 432
