"""Curation by days against the curation of the whole log at once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from grpo.artifacts import ArtifactStore
from grpo.config.retraining import CurationSettings
from grpo.config.scenarios import ServedSource
from grpo.log.compaction import compact
from grpo.log.folder import ServedLog
from grpo.messages import Message
from grpo.registry.retention import Retention
from grpo.retraining.curation import ACCEPTED, DAYS, LIVE, REDACTED, REJECTED, curate_conversations
from grpo.scenario import Scenario
from grpo.scenarios.readers.served import join_served
from grpo.serving.erasure import erase
from grpo_tasks.execution.parts import StoredParts
from tests.grpo.log.fixtures import NOON, turn
from tests.grpo.log.test_compaction import write
from tests.grpo.retraining.random_logs import TEXTS, RandomLog
from tests.grpo.retraining.whole_curation import curate_whole

KNOWN = [Scenario(id="base-1", user_responses=(TEXTS[1],))]
HELDOUT = [Scenario(id="base-2", user_responses=(TEXTS[2],))]
SETTINGS = CurationSettings(licences=("own",), max_unreadable_fraction=1)


def live_rows(source: ServedSource) -> list[tuple[object, ...]]:
    """Production metrics of all conversations, joined at once."""
    return [
        (f"conversation-{item.id}", item.model, item.reward, item.judgement.rating)
        for item in join_served(source).conversations
    ]


def compare(folder: Path, source: ServedSource, parts: StoredParts, step: str) -> int:
    """Curate both ways, and compare each row of the tables; returns the number of accepted conversations."""
    by_days, whole = folder / "days", folder / "whole"
    for place in (by_days, whole):
        place.mkdir(exist_ok=True)
    given = {"known": KNOWN, "heldout": HELDOUT, "settings": SETTINGS}
    counts = curate_conversations([source], by_days, **given, parts=parts)
    assert counts == curate_whole([source], whole, **given), step
    for name in (REDACTED, ACCEPTED, REJECTED):
        assert pq.read_table(by_days / name).to_pylist() == pq.read_table(whole / name).to_pylist(), (step, name)
    rows = pq.read_table(by_days / LIVE).to_pylist()
    assert [(row["id"], row["model"], row["reward"], row["rating"]) for row in rows] == live_rows(source), step
    return counts.accepted


@pytest.mark.parametrize("seed", range(3))
def test_days_give_what_the_whole_log_gives_at_every_moment(tmp_path: Path, seed: int):
    """A random log after each of 25 changes: the parts of earlier steps are used where nothing of theirs changed."""
    log, accepted = RandomLog(tmp_path / "log", seed), 0
    for number in range(25):
        step = f"step {number}: {log.step()}"
        source = ServedSource(kind="served", path=str(log.folder), segments=ServedLog(log.folder).snapshot())
        accepted += compare(tmp_path, source, StoredParts(str(tmp_path / "store"), DAYS), step)
    assert accepted


def test_an_erased_conversation_is_in_no_part_that_is_used_again(tmp_path: Path):
    """Its day is computed again without it, the parts that named it are gone, and the rest are found again."""
    log = tmp_path / "log"
    (tmp_path / "home").mkdir()
    with_log(log, "abcd")
    store, source = ArtifactStore(str(tmp_path / "store")), ServedSource(kind="served", path=str(log))
    parts = StoredParts(store.uri, DAYS)
    assert compare(tmp_path, source, parts, "before") > 0
    named = [artifact for artifact in parts.used.values() if b"conversation-b" in text_of(store.path(artifact))]
    assert named
    receipt = erase(log, conversation_id="b", home=tmp_path / "home", stores=[store.uri])
    assert receipt is not None
    assert {artifact.sha256 for artifact in named} <= {item.sha256 for item in receipt.artifacts}
    after = StoredParts(store.uri, DAYS)
    compare(tmp_path, source, after, "after")
    files = [*(tmp_path / "store").rglob("*.parquet"), *(tmp_path / "days").rglob("*.parquet")]
    assert len(files) > 4
    assert not [path for path in files if b"conversation-b" in text_of(path)]
    assert set(after.used) & set(parts.used)


def test_parts_that_no_check_uses_for_two_days_are_removed(tmp_path: Path):
    """Used on the 20th and not on the 21st: they are there on the 21st, and gone, with their results, on the 22nd."""
    store, today = ArtifactStore(str(tmp_path / "store")), NOON.date()
    parts = StoredParts(store.uri, DAYS)
    old, new = (parts.make("part", {"name": name}, lambda path, name=name: path.write_text(name)) for name in "ab")
    (old_key, old_part), (new_key, new_part) = parts.used.items()
    retention = Retention(store)
    assert retention.renew(DAYS, {old_key: old_part, new_key: new_part}, today=today) == []
    assert retention.renew(DAYS, {new_key: new_part}, today=today + timedelta(days=1)) == []
    assert old.exists()
    assert retention.renew(DAYS, {new_key: new_part}, today=today + timedelta(days=2)) == [old_part]
    assert (old.exists(), new.exists()) == (False, True)
    assert StoredParts(store.uri, DAYS).find("part", {"name": "a"}) is None
    assert StoredParts(store.uri, DAYS).find("part", {"name": "b"}) == new
    assert store.documents.names("results") == [f"results/{new_key}"]


def with_log(folder: Path, names: str) -> None:
    """A compacted log of one conversation a day."""
    records = []
    for number, name in enumerate(names):
        text = Message(role="user", content=f"{TEXTS[number]} It is about {name}.")
        made = turn(name, conversation_id=name, time=NOON + timedelta(days=number))
        records.append(replace(made, turns=(replace(made.turns[0], message=text), made.turns[1])))
    write(folder, *records)
    compact(folder)


def text_of(path: Path) -> bytes:
    """All texts of a table."""
    return str(pq.read_table(path).to_pylist()).encode()
