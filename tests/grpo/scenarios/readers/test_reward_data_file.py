"""Pairs and labels in a user's file: columns by name, and every record counted."""

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
    """The pairs of a file, and the reasons of quarantined records; the counts add up."""
    kind = {"tsv": "csv"}.get(path.suffix[1:], path.suffix[1:])
    parsed = read_pair_file(PairFile.model_validate({"kind": kind, "path": str(path), **settings}))
    assert parsed.records == len(parsed.items) + len(parsed.quarantined)
    return list(parsed.items), parsed.reasons


KINDS = ["jsonl", "json", "csv", "tsv", "parquet"]


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_read_by_their_columns_from_every_format(tmp_path: Path, kind: str):
    """Three pairs under other column names; each prompt is a group."""
    items, reasons = pairs(write(tmp_path, kind, PAIRS), licence="MIT", **COLUMNS)
    assert reasons == {}
    assert [item.prompt for item in items] == [(Message(role="user", content=row["question"]),) for row in PAIRS]
    assert [(item.chosen.content, item.rejected.content) for item in items] == [(r["good"], r["bad"]) for r in PAIRS]
    assert {item.chosen.role for item in items} == {"assistant"}
    assert len({item.group for item in items}) == len({item.id for item in items}) == 3
    assert {(item.source, item.licence) for item in items} == {(f"rows.{kind}", "MIT")}


def messages(*texts: str) -> list[dict[str, str]]:
    """Messages of user and assistant in turns."""
    return [{"role": "assistant" if k % 2 else "user", "content": text} for k, text in enumerate(texts)]


@pytest.mark.parametrize("kind", KINDS)
def test_whole_conversations_are_pairs_that_differ_in_their_last_message(tmp_path: Path, kind: str):
    """The common beginning is the prompt."""
    rows = [{"chosen": messages("a", "b", "c", "yes"), "rejected": messages("a", "b", "c", "no")}]
    items, reasons = pairs(write(tmp_path, kind, rows), layout="messages", prompt=None)
    assert reasons == {}
    assert [message.content for message in items[0].prompt] == ["a", "b", "c"]
    assert (items[0].chosen.content, items[0].rejected.content) == ("yes", "no")


def test_a_prompt_may_be_messages_with_a_reply_beside_it(tmp_path: Path):
    """This is the format of TRL's conversational preferences."""
    rows = [{"prompt": messages("a"), "chosen": [messages("a", "yes")[1]], "rejected": [messages("a", "no")[1]]}]
    items, _ = pairs(write(tmp_path, "jsonl", rows), layout="messages")
    assert (items[0].prompt[0].content, items[0].chosen.content) == ("a", "yes")


CALL = {"id": "c", "function": {"name": "look_up", "arguments": "{}"}}


def share(speaker: str, text: str) -> dict[str, str]:
    """A message of ShareGPT."""
    return {"from": speaker, "value": text}


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
@pytest.mark.parametrize(
    ("row", "settings"),
    [
        (
            {"conversations": [share("human", "a")], "chosen": share("gpt", "yes"), "rejected": share("gpt", "no")},
            {"prompt": "conversations", "layout": "messages"},
        ),
        (
            {
                "input": {"messages": messages("a")},
                "preferred_output": [messages("a", "yes")[1]],
                "non_preferred_output": [messages("a", "no")[1]],
            },
            {"prompt": "input", "chosen": "preferred_output", "rejected": "non_preferred_output", "layout": "messages"},
        ),
        (
            {
                "chosen": [share("human", "a"), share("gpt", "yes")],
                "rejected": [share("human", "a"), share("gpt", "no")],
            },
            {"prompt": None, "layout": "messages"},
        ),
        ({"instruction": "a", "input": "", "chosen": "yes", "rejected": "no"}, {"prompt": ["instruction", "input"]}),
    ],
)
def test_the_layouts_of_others_are_read(tmp_path: Path, kind: str, row: dict[str, Any], settings: dict[str, Any]):
    """ShareGPT's and OpenAI's preference records, and Alpaca's; with a system prompt in a column of its own."""
    items, reasons = pairs(write(tmp_path, kind, [{**row, "system": "Be kind."}]), system="system", **settings)
    assert reasons == {}
    assert [(m.role, m.content) for m in items[0].prompt] == [("system", "Be kind."), ("user", "a")]
    assert (items[0].chosen.content, items[0].rejected.content) == ("yes", "no")


def test_tools_of_a_pair_are_not_lost(tmp_path: Path):
    """A pair of texts cannot keep them: quarantined."""
    row = {"input": {"messages": messages("a"), "tools": [CALL]}, "chosen": "x", "rejected": "y"}
    row |= {"chosen": [messages("a", "yes")[1]], "rejected": [messages("a", "no")[1]]}
    assert pairs(write(tmp_path, "jsonl", [row]), prompt="input", layout="messages") == ([], {"tools in a pair": 1})


DIRT: list[tuple[dict[str, Any], str]] = [
    ({"good": None}, "column good is missing or empty"),
    ({"good": "No idea."}, "chosen and rejected are the same"),
    ({"bad": "  "}, "rejected: reply is empty"),
    ({"bad": 5}, "no text in column bad"),
    ({"good": ["x"]}, "no text in column good"),
]


@pytest.mark.parametrize(("change", "reason"), DIRT)
def test_a_bad_record_is_quarantined_with_its_reason_and_the_others_are_read(
    tmp_path: Path, change: dict[str, Any], reason: str
):
    """The second of three is bad."""
    rows = [PAIRS[0], {**PAIRS[1], **change}, PAIRS[2]]
    items, reasons = pairs(write(tmp_path, "jsonl", rows), **COLUMNS)
    assert (len(items), reasons) == (2, {reason: 1})


@pytest.mark.parametrize(
    ("chosen", "rejected", "reason"),
    [
        (messages("a", "yes"), messages("b", "no"), "conversations differ before the last message"),
        (messages("a"), messages("a", "no"), "no reply at the end of column chosen"),
        ([{"role": "owl", "content": "x"}], messages("a", "no"), "column chosen holds no messages"),
        ([{**messages("a")[0], "images": ["a.png"]}], messages("a", "no"), "column chosen holds no messages"),
        (
            [{**messages("a", "b")[1], "tool_calls": [CALL]}],
            messages("a", "no"),
            "tool calls in a pair",
        ),
        ("[{", messages("a", "no"), "column chosen is not JSON"),
        (messages("a", "yes"), [], "no reply at the end of column rejected"),
    ],
)
def test_a_bad_conversation_is_quarantined_with_its_reason(tmp_path: Path, chosen: Any, rejected: Any, reason: str):
    """Roles and turns are not guessed."""
    path = write(tmp_path, "jsonl", [{"chosen": chosen, "rejected": rejected}])
    assert pairs(path, layout="messages", prompt=None) == ([], {reason: 1})


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_missing_column_is_an_error_that_lists_the_columns(tmp_path: Path, kind: str):
    """The error comes before the first record."""
    with pytest.raises(DataError, match=r"no column reply.*question"):
        pairs(write(tmp_path, kind, PAIRS), **{**COLUMNS, "chosen": "reply"})


def test_ids_groups_and_splits_come_from_their_columns(tmp_path: Path):
    """An empty split stays open; a duplicate id is quarantined."""
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
    for parsed in (by_label, by_column):
        assert [(i.reply.content, i.label, i.score) for i in parsed.items] == [
            (row["text"], row["label"], row["stars"]) for row in LABELS
        ]
        assert {item.prompt for item in parsed.items} == {()}


def test_labels_without_a_score_are_quarantined_with_their_reason(tmp_path: Path):
    """A label that is not listed, a number that is not finite; a label that is a number becomes its text."""
    path = write(tmp_path, "jsonl", [*LABELS, {"text": "x", "label": "odd", "stars": 1}])
    parsed = read_label_file(LabelFile(kind="jsonl", path=str(path), scores=STARS))
    assert (len(parsed.items), parsed.reasons) == (4, {"label without a score": 1})
    path = write(tmp_path, "csv", [{**LABELS[0], "stars": "nan"}, {**LABELS[1], "label": 1}])
    parsed = read_label_file(LabelFile(kind="csv", path=str(path), score="stars"))
    assert [item.label for item in parsed.items] == ["1"]
    assert parsed.reasons == {"score: Input should be a finite number": 1}


@pytest.mark.parametrize(
    ("kind", "settings", "error"),
    [
        (PairFile, {"prompt": None}, "set layout: messages"),
        (LabelFile, {"score": "s", "scores": {"a": 1}}, "exclude each other"),
        (PairFile, {"choosen": "x"}, "Extra inputs are not permitted"),
    ],
)
def test_contradictory_settings_are_an_error(kind: Any, settings: dict[str, Any], error: str):
    """The error comes when the settings are read."""
    with pytest.raises(ValidationError, match=error):
        kind.model_validate({"kind": "csv", "path": "x.csv", **settings})


def test_columns_may_be_named_in_a_file_of_settings(tmp_path: Path):
    """The settings are loaded from YAML."""
    path = write(tmp_path, "csv", PAIRS)
    (tmp_path / "pairs.yaml").write_text(f"kind: csv\npath: {path}\nprompt: question\nchosen: good\nrejected: bad\n")
    assert len(read_pair_file(load_settings(tmp_path / "pairs.yaml", PairFile)).items) == 3


POLITE, RUDE = "Of course, here you are.", "Go away."


def test_a_reward_is_trained_on_the_pairs_of_a_file(tmp_path: Path):
    """The reward that `NeuralRewardTrainer` learns from a CSV file ranks held-out pairs like the file."""
    rows = [{"prompt": f"Help me with {k}.", "chosen": f"{POLITE} {k}", "rejected": f"{RUDE} {k}"} for k in range(120)]
    items, _ = pairs(write(tmp_path, "csv", rows))
    trainer = NeuralRewardTrainer("ngrams", items, folder=tmp_path / "reward")
    asyncio.run(trainer.train())
    assert trainer.report is not None
    assert trainer.report.heldout.value == 1.0  # type: ignore[union-attr]


def test_a_reward_is_trained_on_the_labels_of_a_file(tmp_path: Path):
    """From Parquet, without prompts: held-out AUC 1 for labels that follow from the text."""
    rows = [{"text": f"{POLITE if k % 2 else RUDE} {k}", "label": "good" if k % 2 else "bad"} for k in range(200)]
    path = write(tmp_path, "parquet", rows)
    items = read_label_file(LabelFile(kind="parquet", path=str(path), scores=STARS)).items
    held = held_out_mask([item.group for item in items])
    splits = [[item for item, out in zip(items, held, strict=True) if out == split] for split in (False, True)]
    card = train_on_labels(*splits, tmp_path / "reward", split="a fifth by group")
    assert card.heldout is not None
    assert card.heldout.value == 1.0
