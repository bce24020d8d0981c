"""Pairs and labels of one's own: columns by name, and nothing lost."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from grpo.config.loading import load_settings
from grpo.config.rewards import LabelFile, PairFile
from grpo.errors import DataError
from grpo.learner.trl.reward_model import NeuralRewardTrainer
from grpo.messages import Message
from grpo.rewards.learned.training import held_out_mask, train_on_labels
from grpo.scenarios.reward_data import PreferencePair, read_label_file, read_pair_file

PAIRS = [{"question": f"What is {k} + 1?", "good": f"It is {k + 1}.", "bad": "No idea."} for k in range(3)]
COLUMNS = {"prompt": "question", "chosen": "good", "rejected": "bad"}


def write(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    """The rows in a file of this kind; lists are JSON text where a cell cannot hold them."""
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "json":
        path.write_text(json.dumps(rows))
    else:
        cells = [[c if isinstance(c, str) else json.dumps(c) for c in row.values()] for row in rows]
        quoted = [['"' + cell.replace('"', '""') + '"' for cell in row] for row in [list(rows[0]), *cells]]
        path.write_text("".join(("\t" if kind == "tsv" else ",").join(row) + "\n" for row in quoted))
    return path


def pairs(path: Path, **settings: Any) -> tuple[list[PreferencePair], dict[str, int]]:
    """The pairs of a file, and the reasons of what was refused; the counts add up."""
    kind = {"tsv": "csv"}.get(path.suffix[1:], path.suffix[1:])
    readout = read_pair_file(PairFile.model_validate({"kind": kind, "path": str(path), **settings}))
    assert readout.records == len(readout.items) + len(readout.quarantined)
    return list(readout.items), readout.reasons


KINDS = ["jsonl", "json", "csv", "tsv", "parquet"]


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_read_by_their_columns_from_every_format(tmp_path: Path, kind: str):
    """Three pairs under names of their own; each prompt is a group."""
    items, reasons = pairs(write(tmp_path, kind, PAIRS), licence="MIT", **COLUMNS)
    assert reasons == {}
    assert [item.prompt for item in items] == [(Message(role="user", content=row["question"]),) for row in PAIRS]
    assert [(item.chosen.content, item.rejected.content) for item in items] == [(r["good"], r["bad"]) for r in PAIRS]
    assert {item.chosen.role for item in items} == {"assistant"}
    assert len({item.group for item in items}) == len({item.id for item in items}) == 3
    assert {(item.source, item.licence) for item in items} == {(f"rows.{kind}", "MIT")}


def said(*texts: str) -> list[dict[str, str]]:
    """User and assistant in turns."""
    return [{"role": "assistant" if k % 2 else "user", "content": text} for k, text in enumerate(texts)]


@pytest.mark.parametrize("kind", KINDS)
def test_whole_conversations_are_pairs_that_differ_in_their_last_message(tmp_path: Path, kind: str):
    """The beginning that both share is the prompt."""
    rows = [{"chosen": said("a", "b", "c", "yes"), "rejected": said("a", "b", "c", "no")}]
    items, reasons = pairs(write(tmp_path, kind, rows), layout="messages", prompt=None)
    assert reasons == {}
    assert [message.content for message in items[0].prompt] == ["a", "b", "c"]
    assert (items[0].chosen.content, items[0].rejected.content) == ("yes", "no")


def test_a_prompt_may_be_messages_with_a_reply_beside_it(tmp_path: Path):
    """As TRL writes conversational preferences."""
    rows = [{"prompt": said("a"), "chosen": [said("a", "yes")[1]], "rejected": [said("a", "no")[1]]}]
    items, _ = pairs(write(tmp_path, "jsonl", rows), layout="messages")
    assert (items[0].prompt[0].content, items[0].chosen.content) == ("a", "yes")


DIRT: list[tuple[dict[str, Any], str]] = [
    ({"good": None}, "nothing in column good"),
    ({"good": "No idea."}, "chosen and rejected are the same"),
    ({"bad": "  "}, "rejected: reply is empty"),
    ({"bad": 5}, "no text in column bad"),
    ({"good": ["x"]}, "no text in column good"),
]


@pytest.mark.parametrize(("change", "reason"), DIRT)
def test_a_bad_record_is_refused_with_its_reason_and_the_others_are_read(
    tmp_path: Path, change: dict[str, Any], reason: str
):
    """The second of three is spoilt."""
    rows = [PAIRS[0], {**PAIRS[1], **change}, PAIRS[2]]
    items, reasons = pairs(write(tmp_path, "jsonl", rows), **COLUMNS)
    assert (len(items), reasons) == (2, {reason: 1})


@pytest.mark.parametrize(
    ("chosen", "rejected", "reason"),
    [
        (said("a", "yes"), said("b", "no"), "conversations differ before the last message"),
        (said("a"), said("a", "no"), "no reply at the end of column chosen"),
        ([{"role": "bot", "content": "x"}], said("a", "no"), "column chosen holds no messages"),
        ("[{", said("a", "no"), "column chosen is not JSON"),
        (said("a", "yes"), [], "no reply at the end of column rejected"),
    ],
)
def test_a_bad_conversation_is_refused_with_its_reason(tmp_path: Path, chosen: Any, rejected: Any, reason: str):
    """Nothing is guessed about roles and turns."""
    path = write(tmp_path, "jsonl", [{"chosen": chosen, "rejected": rejected}])
    assert pairs(path, layout="messages", prompt=None) == ([], {reason: 1})


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_column_that_the_file_lacks_is_an_error_with_those_that_it_has(tmp_path: Path, kind: str):
    """Before any record is read."""
    with pytest.raises(DataError, match=r"no column reply.*question"):
        pairs(write(tmp_path, kind, PAIRS), **{**COLUMNS, "chosen": "reply"})


def test_ids_groups_and_sides_come_from_their_columns(tmp_path: Path):
    """A split that is not given is left open; an id that comes twice is refused."""
    more = [{"n": n, "topic": "sums", "part": part} for n, part in ((7, "train"), (8, ""), (7, "heldout"))]
    path = write(tmp_path, "csv", [{**row, **extra} for row, extra in zip(PAIRS, more, strict=True)])
    items, reasons = pairs(path, id="n", group="topic", category="topic", split="part", **COLUMNS)
    assert [(i.id, i.group, i.category, i.split) for i in items] == [
        ("7", "sums", "sums", "train"),
        ("8", "sums", "sums", None),
    ]
    assert reasons == {"duplicate id": 1}


STARS = {"good": 1.0, "bad": 0.0}
LABELS = [{"text": f"{word} {k}", "label": word, "stars": stars} for k in range(2) for word, stars in STARS.items()]


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_read_by_their_columns_from_every_format(tmp_path: Path, kind: str):
    """Texts without a prompt, scored by a table of the labels or by a column."""
    path = write(tmp_path, kind, LABELS)
    read = {"kind": "csv" if kind == "tsv" else kind, "path": str(path)}
    by_label = read_label_file(LabelFile.model_validate({**read, "scores": STARS}))
    by_column = read_label_file(LabelFile.model_validate({**read, "score": "stars"}))
    for readout in (by_label, by_column):
        assert [(i.reply.content, i.label, i.score) for i in readout.items] == [
            (row["text"], row["label"], row["stars"]) for row in LABELS
        ]
        assert {item.prompt for item in readout.items} == {()}


def test_labels_that_cannot_be_scored_are_refused_with_their_reason(tmp_path: Path):
    """A label that is not listed, a number that is not finite; a label that is a number becomes its text."""
    path = write(tmp_path, "jsonl", [*LABELS, {"text": "x", "label": "odd", "stars": 1}])
    readout = read_label_file(LabelFile(kind="jsonl", path=str(path), scores=STARS))
    assert (len(readout.items), readout.reasons) == (4, {"label without a score": 1})
    path = write(tmp_path, "csv", [{**LABELS[0], "stars": "nan"}, {**LABELS[1], "label": 1}])
    readout = read_label_file(LabelFile(kind="csv", path=str(path), score="stars"))
    assert [item.label for item in readout.items] == ["1"]
    assert readout.reasons == {"score: Input should be a finite number": 1}


@pytest.mark.parametrize(
    ("kind", "settings", "error"),
    [
        (PairFile, {"prompt": None}, "set layout: messages"),
        (LabelFile, {"score": "s", "scores": {"a": 1}}, "give one of them"),
        (PairFile, {"choosen": "x"}, "Extra inputs are not permitted"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(kind: Any, settings: dict[str, Any], error: str):
    """As soon as they are read, not in the middle of a file."""
    with pytest.raises(ValidationError, match=error):
        kind.model_validate({"kind": "csv", "path": "x.csv", **settings})


def test_columns_may_stand_in_a_file_of_settings(tmp_path: Path):
    """As every other setting."""
    path = write(tmp_path, "csv", PAIRS)
    (tmp_path / "pairs.yaml").write_text(f"kind: csv\npath: {path}\nprompt: question\nchosen: good\nrejected: bad\n")
    assert len(read_pair_file(load_settings(tmp_path / "pairs.yaml", PairFile)).items) == 3


POLITE, RUDE = "Of course, here you are.", "Go away."


def test_pairs_of_ones_own_teach_a_reward(tmp_path: Path):
    """The reward that `NeuralRewardTrainer` learns from a CSV file prefers what the file prefers."""
    rows = [{"prompt": f"Help me with {k}.", "chosen": f"{POLITE} {k}", "rejected": f"{RUDE} {k}"} for k in range(120)]
    items, _ = pairs(write(tmp_path, "csv", rows))
    trainer = NeuralRewardTrainer("ngrams", items, folder=tmp_path / "reward")
    asyncio.run(trainer.train())
    assert trainer.report is not None
    assert trainer.report.heldout.value == 1.0  # type: ignore[union-attr]


def test_labels_of_ones_own_teach_a_reward(tmp_path: Path):
    """From Parquet, without prompts: held-out AUC 1 where every label can be told by its words."""
    rows = [{"text": f"{POLITE if k % 2 else RUDE} {k}", "label": "good" if k % 2 else "bad"} for k in range(200)]
    path = write(tmp_path, "parquet", rows)
    items = read_label_file(LabelFile(kind="parquet", path=str(path), scores=STARS)).items
    held = held_out_mask([item.group for item in items])
    splits = [[item for item, out in zip(items, held, strict=True) if out == split] for split in (False, True)]
    card = train_on_labels(*splits, tmp_path / "reward", split="a fifth by group")
    assert card.heldout is not None
    assert card.heldout.value == 1.0
