from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from grpo.artifact_copies import adopt
from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.retraining import CurationSettings
from grpo.config.scenarios import ServedSource, Source
from grpo.errors import ArtifactError
from grpo.log import LoggedConversation, append
from grpo.log.writer import ServingLog
from grpo.messages import Message
from grpo.registry import Registry
from grpo.retraining.champion import (
    Challenger,
    Champion,
    known_topics,
    last_challenger,
    new_conversations,
    production_metrics,
)
from grpo.retraining.curation import LIVE
from grpo.retraining.data_lineage import TrainingData, folder_of_run
from grpo.scenario import Scenario
from grpo.scenarios.table import write_scenarios
from grpo.storage.home import home
from tests.grpo.log.fixtures import feedback, turn
from tests.grpo.registry.making import put_version
from tests.grpo.retraining.curating import curate

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals
THEN = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    return Registry(f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db")


@pytest.fixture
def artifacts(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path / "store"))


def table(artifacts: ArtifactStore, kind: str, file: str, ids: Iterable[str]) -> Artifact:
    with artifacts.new_folder(kind) as new:
        write_scenarios(new.path / file, [Scenario(id=name, user_responses=(f"It is about {name}.",)) for name in ids])
    return new.artifact


def serving(artifacts: ArtifactStore, version: int = 1, *, seen: Iterable[str] | None = None) -> Champion:
    scenarios = table(artifacts, "scenarios", "scenarios.parquet", ["base-1"])
    return Champion(
        name=f"desk/{version}",
        registered=THEN,
        checkpoint=Artifact(uri="store/x", sha256=f"checkpoint-{version}", kind="checkpoint"),
        data_lineage=(TrainingData(scenarios=scenarios, validation_fraction=0.25, limit=None),),
        conversations=table(artifacts, "conversations", "redacted.parquet", seen) if seen is not None else None,
        evaluation=None,
    )


def challenger(artifacts: ArtifactStore, seen: Iterable[str]) -> Challenger:
    taken = table(artifacts, "conversations", "redacted.parquet", seen)
    return Challenger(name="desk/2", registered=THEN, conversations=taken)


def test_the_tables_of_a_version_of_another_store_are_copied(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The pipeline has another store than the run had: its scenarios and conversations are found, once and for all.

    What was erased from them does not come back from the other store, and is not looked for there any more.
    """
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    first, second = (ArtifactStore(str(tmp_path / name)) for name in ("first", "second"))
    scenarios = table(first, "scenarios", "scenarios.parquet", ["base-1"])
    seen = table(first, "conversations", "redacted.parquet", ["talk-1"])
    with first.new_folder("checkpoint") as checkpoint:
        (checkpoint.path / "weights").write_bytes(b"1")
    made = {"checkpoint_uri": checkpoint.artifact.uri, "checkpoint_sha256": checkpoint.artifact.sha256}
    number = put_version(registry, "moved", "c", against="b", **made, scenarios=scenarios.sha256)
    version = registry.resolve(f"models:/moved/{number}")
    assert folder_of_run(first, version, "scenarios", scenarios.sha256) == scenarios
    copied = [folder_of_run(second, version, kept.kind, kept.sha256) for kept in (scenarios, seen)]
    assert copied == [second.folder(kept.kind, kept.sha256) for kept in (scenarios, seen)]
    assert second.path(copied[0]).joinpath("scenarios.parquet").is_file()
    second.erase(copied[1], None)
    assert not second.has(folder_of_run(second, version, seen.kind, seen.sha256))
    without_one, without_two = (table(first, "conversations", "redacted.parquet", ids) for ids in (["b", "c"], ["c"]))
    first.erase(seen, without_one)
    third = ArtifactStore(str(home() / "artifacts"))  # the store of a home, which has the checkpoint already
    adopt(third, version.checkpoint)
    assert folder_of_run(third, version, seen.kind, seen.sha256).sha256 == without_one.sha256
    remaining = adopt(third, without_two)
    third.erase(third.own(without_one), remaining)
    assert folder_of_run(third, version, seen.kind, seen.sha256) == remaining
    assert folder_of_run(third, version, "scenarios", scenarios.sha256) == third.own(scenarios)
    (tmp_path / "first").rename(tmp_path / "gone")
    assert folder_of_run(second, version, "scenarios", scenarios.sha256) == copied[0]
    missing = folder_of_run(second, version, "scenarios", "ab" * 32)
    with pytest.raises(ArtifactError, match="is missing"):
        second.path(missing)


def test_the_last_challenger_is_the_newest_version_against_the_champion(registry: Registry, artifacts: ArtifactStore):
    """Refused or rolled back from; a run by hand saw no conversations, and one against another version says nothing."""
    put_version(registry, "desk", "checkpoint-1", against="base")
    champion = serving(artifacts)
    assert last_challenger(registry, artifacts, "desk", champion) is None
    put_version(registry, "desk", "checkpoint-2", against="checkpoint-1", conversations="aa" * 32)
    put_version(registry, "desk", "checkpoint-3", against="checkpoint-1", verdict="refuse", conversations="bb" * 32)
    put_version(registry, "desk", "checkpoint-4", against="checkpoint-1")
    put_version(registry, "desk", "checkpoint-5", against="checkpoint-2", conversations="cc" * 32)
    found = last_challenger(registry, artifacts, "desk", champion)
    assert found is not None
    assert (found.name, found.conversations.sha256) == ("desk/3", "bb" * 32)


def test_without_a_champion_the_newest_version_is_the_last_challenger(registry: Registry, artifacts: ArtifactStore):
    """It was judged against the pipeline's own model."""
    put_version(registry, "shop", "s-1", against="base", verdict="refuse", conversations="aa" * 32)
    put_version(registry, "shop", "s-2", against="base", verdict="refuse", conversations="bb" * 32)
    found = last_challenger(registry, artifacts, "shop", None)
    assert found is not None
    assert found.name == "shop/2"


def test_training_data_of_a_refused_version_is_not_new_again(tmp_path: Path, artifacts: ArtifactStore):
    """Of four conversations the champion knew one and the refused version two more: one is new.

    Seen from the champion, which is what training starts from, three are.
    """
    write_scenarios(
        tmp_path / "log.parquet", [Scenario(id=f"live-{k}", user_responses=("Hello there.",)) for k in range(4)]
    )
    champion = serving(artifacts, seen=["live-0"])
    refused = challenger(artifacts, ["live-0", "live-1", "live-2"])
    assert new_conversations(tmp_path / "log.parquet", artifacts, champion, refused).ids.to_pylist() == ["live-3"]
    assert new_conversations(tmp_path / "log.parquet", artifacts, champion).ids.to_pylist() == [
        "live-1",
        "live-2",
        "live-3",
    ]


def test_topics_are_compared_with_those_of_the_last_challenger(artifacts: ArtifactStore):
    """Users who talk otherwise since before it have had their retraining."""
    champion = serving(artifacts, seen=[f"old-{k}" for k in range(50)])
    refused = challenger(artifacts, [f"new-{k}" for k in range(50)])
    assert known_topics(artifacts, champion)[0].startswith("It is about old-0")
    assert known_topics(artifacts, champion, refused)[0].startswith("It is about new-0")


NOON = datetime(2021, 11, 21, 12, tzinfo=UTC)


def metrics(folder: Path, source: Source, since: datetime | None = None) -> dict[str, list[float]]:
    """Production metrics of version 1 as a check of the triggers reads them, after curation."""
    out = folder / "out" / "curated"
    out.mkdir(parents=True, exist_ok=True)
    curate([source], out, settings=CurationSettings(licences=("own",), max_unreadable_fraction=1))
    return production_metrics(out / LIVE, "desk/1", since)


def test_production_metrics_of_a_serving_log(tmp_path: Path):
    """Two verified outcomes and a rating of one version, in the order of its conversations; none of another version."""
    turns = [replace(turn(name), conversation_id=name) for name in "abc"]
    events = [
        feedback("f", conversation_id="a", success=False),
        feedback("g", conversation_id="b", success=True, rating=0.25),
        feedback("h", conversation_id="d", success=True),
    ]

    async def serve() -> None:
        async with ServingLog(tmp_path) as log:
            for record in (*turns, replace(turn("d"), conversation_id="d", model="desk/2"), *events):
                await log.append(record)

    asyncio.run(serve())
    source = ServedSource(kind="served", path=str(tmp_path))
    assert metrics(tmp_path, source) == {"reward": [0.0, 1.0], "rating": [0.25]}
    since = turns[1].time
    assert metrics(tmp_path, source, since) == {"reward": [1.0], "rating": [0.25]}


def test_production_metrics_of_another_server_are_those_of_its_conversations(tmp_path: Path):
    """Four an hour apart of this version, one of another; two came after 13:30."""
    messages = (Message(role="user", content="Hello."), Message(role="assistant", content="Hi."))
    for k, model in enumerate(["desk/1", "desk/1", "desk/1", "desk/1", "desk/2"]):
        time = NOON + timedelta(hours=k)
        append(tmp_path, [LoggedConversation(id=f"c{k}", time=time, model=model, messages=messages, rating=k / 10)])
    source = ServedSource(kind="served", path=str(tmp_path))
    assert metrics(tmp_path, source) == {"reward": [], "rating": [0.0, 0.1, 0.2, 0.3]}
    assert metrics(tmp_path, source, NOON + timedelta(hours=1.5)) == {"reward": [], "rating": [0.2, 0.3]}
