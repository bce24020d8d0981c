"""Data sets on a hub, served on loopback: splits, subsets, pinned commits, offline and refusals."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo.config.scenarios import HubDataSource, ScenarioSettings
from grpo.errors import ArtifactError, DataError
from grpo.scenarios.hub_dataset import pin_source
from grpo.scenarios.sources import content_hash, pin_sources, read_records
from grpo.storage.hub import OFFLINE
from tests.hub_server import Hub, HubRepo, hub_server

NAME = "acme/tickets"
CARD = b"""---
configs:
- config_name: de
  data_files: [{split: train, path: german/*.csv}, {split: test, path: german/late.csv}]
- config_name: en
  default: true
  data_files: english.jsonl
---
# Tickets
"""


def table(*questions: str) -> bytes:
    """A Parquet file of tickets, long enough to be listed with its sha256."""
    file = io.BytesIO()
    pq.write_table(pa.table({"ticket": [*map(str, range(len(questions)))], "question": [*questions]}), file)
    return file.getvalue()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with nothing on it, and an empty cache."""
    with hub_server(monkeypatch, tmp_path / "cache") as running:
        yield running


@pytest.fixture
def tickets(server: Hub) -> HubRepo:
    """Two shards of training and one of testing, as `datasets` pushes them, beside a script."""
    files = {
        "data/train-00000-of-00002.parquet": table("Where is it?", "It is broken."),
        "data/train-00001-of-00002.parquet": table("I want to return it."),
        "data/test-00000-of-00001.parquet": table("Who are you?"),
        "tickets.py": b"import os",
        "README.md": b"# Tickets",
    }
    return server.add(NAME, files)


def source(**changes: object) -> HubDataSource:
    columns = {"id": "ticket", "user_responses": "question"}
    return HubDataSource.model_validate({"kind": "hub", "id": NAME, "columns": columns, **changes})


def questions(of: HubDataSource) -> list[object]:
    return [None if record.data is None else record.data["user_responses"] for record in read_records(of)]


def test_the_files_of_a_split_are_read_in_their_order(server: Hub, tickets: HubRepo):
    """Columns are mapped; files of other splits and code are not fetched."""
    assert questions(source()) == [["Where is it?"], ["It is broken."], ["I want to return it."]]
    assert sorted(server.fetched()) == ["README.md", "train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]
    assert questions(source(split="test")) == [["Who are you?"]]
    assert "tickets.py" not in server.fetched()
    with pytest.raises(DataError, match=f"{NAME}@{tickets.branches['main']} has no split 'dev', only train, test"):
        questions(source(split="dev"))


def test_the_commit_is_the_identity(server: Hub, tickets: HubRepo):
    """Pinned, the source stays while main moves; neither columns nor the name of the branch is content."""
    pinned = pin_source(source())
    before = tickets.branches["main"]
    assert pinned.revision == before
    assert content_hash([source()]) == content_hash([pinned]) == content_hash([source(columns={})])
    tickets.commit({"data/train-00000-of-00001.parquet": table("Is it new?")})
    assert content_hash([source()]) != content_hash([pinned])
    assert content_hash([pinned]) != content_hash([pinned.model_copy(update={"split": "test"})])
    assert len(questions(pinned)) == 3
    assert questions(source()) == [["Is it new?"]]
    settings = ScenarioSettings(sources=(source(revision=before), source()))
    assert [part.revision for part in pin_sources(settings).sources] == [before, tickets.branches["main"]]  # type: ignore[union-attr]


def test_subsets_are_those_of_the_readme(server: Hub):
    """The default one without a name; in another one two splits, of CSV files."""
    csv = {name: f"ticket,question\n1,{name}\n".encode() for name in ("german/early.csv", "german/late.csv")}
    server.add(NAME, {"README.md": CARD, "english.jsonl": b'{"ticket": 1, "question": "Hello?"}\n', **csv})
    assert questions(source()) == [["Hello?"]]
    assert questions(source(subset="de")) == [["german/early.csv"], ["german/late.csv"]]
    assert questions(source(subset="de", split="test")) == [["german/late.csv"]]
    with pytest.raises(DataError, match=r"has no subset 'fr', only de, en\. Correct the source's subset"):
        questions(source(subset="fr"))
    server.repos[NAME].commit({"README.md": CARD.replace(b"  default: true\n", b""), **csv})
    with pytest.raises(DataError, match=r"has subsets de, en\. Set the source's subset to one of them"):
        questions(source())


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"README.md": b"# Nothing"}, "has no data files"),
        (
            {"train.xml": b"x"},
            r"split train has train.xml\. Files of .parquet, .arrow, .jsonl, .json, .csv",
        ),
        (
            {"README.md": CARD.replace(b"english.jsonl", b"../../secret.jsonl")},
            "names files outside of the repository, ../../secret",
        ),
        (
            {"README.md": CARD.replace(b"english.jsonl", b"'https://x.org/a.csv'")},
            "names files outside of the repository, https://x",
        ),
        ({"README.md": CARD.replace(b"english.jsonl", b"[3]")}, "does not declare subsets as the hub's do"),
        ({"README.md": CARD}, "names english.jsonl, which it does not have"),
    ],
)
def test_a_repository_without_readable_data_is_refused(server: Hub, files: Mapping[str, bytes], reason: str):
    """With its name, before any data is fetched, and no address of another server is asked."""
    server.add(NAME, files)
    with pytest.raises(DataError, match=reason):
        questions(source())
    assert set(server.fetched()) <= {"README.md"}


def test_offline_a_fetched_data_set_is_read_from_the_cache(
    server: Hub, tickets: HubRepo, monkeypatch: pytest.MonkeyPatch
):
    """Nothing is asked; one that was not fetched is an error with the remedy."""
    online = questions(source())
    server.requests.clear()
    monkeypatch.setenv(OFFLINE, "1")
    assert questions(source()) == online
    with pytest.raises(DataError, match=r"data/test-00000-of-00001.parquet of acme/tickets@\w{40} is not in the cache"):
        questions(source(split="test"))
    with pytest.raises(DataError, match=r"data set acme/none is not in the cache .* HF_HUB_OFFLINE is set"):
        content_hash([source(id="acme/none")])
    assert server.requests == []


def test_a_missing_network_and_a_missing_data_set_are_named(server: Hub, monkeypatch: pytest.MonkeyPatch):
    """The first may pass, and the second is permanent."""
    with pytest.raises(DataError, match=rf"no data set acme/tickets at {server.url} .*{server.url}/datasets/acme/ti"):
        content_hash([source()])
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConnectionError, match=f"{NAME}: http://127.0.0.1:9 cannot be reached"):
        content_hash([source()])


def test_a_file_that_is_not_the_hubs_is_refused(server: Hub, tickets: HubRepo):
    """A byte of it differs from what the hub lists."""
    name = "data/train-00001-of-00002.parquet"
    content = tickets.commits[tickets.branches["main"]][name]
    tickets.changed[name] = content[:9] + b"\xff" + content[10:]
    with pytest.raises(ArtifactError, match=f"{name} of {NAME}@.* is not the hub's"):
        questions(source())
