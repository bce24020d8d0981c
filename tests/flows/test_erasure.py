"""Erasure after a retraining: its real stages have copied the conversations into their artifacts."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.config.retraining import CurationSettings, MixtureSettings
from grpo.config.scenarios import FileSource, ServedSource
from grpo.errors import ConfigError, ErasedError, ReproductionError, StorageError
from grpo.log.copies import remember_store, stores_in
from grpo.log.folder import ServedLog
from grpo.log.join import scenario_id
from grpo.log.receipt import ErasureReceipt
from grpo.log.writer import ServingLog
from grpo.registry.store import Registry
from grpo.retraining.curation import REDACTED
from grpo.retraining.data_lineage import training_data
from grpo.rewards.judge.judge import AnswerCache
from grpo.scenario import Scenario
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.readers.served import join_served
from grpo.scenarios.sources import content_hash
from grpo.scenarios.table import read_scenarios, write_scenarios
from grpo.serving.erasure import erase
from grpo.serving.mirror.trace_store import TraceStore
from grpo.serving.mirror.traces import assessments, spans, trace_info
from grpo.storage.fetched import user_temp_folder
from grpo.store_move import move_store
from grpo.tables import write_trajectories
from grpo_flows.pipeline import prepare_scenarios
from grpo_flows.reproduce import require_unchanged
from grpo_tasks.build_mixture import build_mixture
from grpo_tasks.curate import curate
from grpo_tasks.execution.executor import InProcessExecutor
from grpo_tasks.execution.stage import executed_by
from grpo_tasks.ingest import ingest
from grpo_tasks.split import split
from grpo_tasks.validate import validate
from grpo_tasks.write_corrections import write_corrections
from grpo_tasks.write_served import with_written_data
from tests.doubles import make_trajectory, put_folder
from tests.grpo.log.fixtures import feedback, turn
from tests.places import DESK_MODEL

pytestmark = pytest.mark.filterwarnings(
    "ignore:module 'sre_(constants|parse)' is deprecated:DeprecationWarning"  # Great Expectations imports them
)
USERS = {"anna": "Where is the parcel to Rose Lane?", "bert": "My invoice of May has two lines."}
"""Question of each user; anna is erased."""
SECRETS = ("Rose Lane", "Rose Lane is on its way")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrained:
    """A home after a retraining, and the conversations of its users. A store in memory lies outside of the home."""

    home: Path
    store: str
    conversations: dict[str, str]
    source: ServedSource
    base: Artifact
    scenarios: Artifact
    curated: Artifact

    @property
    def log(self) -> Path:
        return self.home / "served"

    def traces(self, *words: str) -> set[str]:
        """Kinds of places where one of the words still is, in names, bytes, tables and the store."""
        hits = {_kind(path.relative_to(self.home)) for path in self.home.rglob("*") if _has(path.name, path, words)}
        if self.store.startswith("memory://"):
            file_system, root = fsspec.core.url_to_fs(self.store)
            for name in file_system.find(root):
                if _mentions(name, file_system.cat_file(name), words):
                    hits.add(f"store {name}")
        return hits


def _kind(path: Path) -> str:
    return str(path)


def _has(name: str, path: Path, words: tuple[str, ...]) -> bool:
    return path.is_file() and _mentions(name, path.read_bytes(), words)


def _mentions(name: str, content: bytes, words: tuple[str, ...]) -> bool:
    text = name + content.decode(errors="replace")
    if name.endswith(".parquet"):
        text += str(pq.read_table(io.BytesIO(content)).to_pylist())
    return any(word in text for word in words)


async def _serve(folder: Path) -> dict[str, str]:
    """One conversation of each user, corrected and rated."""
    names = {}
    async with ServingLog(folder) as log:
        for user, question in USERS.items():
            names[user] = name = log.ids.new_conversation("key")
            asked = turn("a", user=log.user_hash(user), conversation_id=name, key="key")
            messages = [question, f"{question[-12:-1]} is on its way"]
            parts = tuple(
                replace(part, message=replace(part.message, content=text))
                for part, text in zip(asked.turns, messages, strict=True)
            )
            await log.append(replace(asked, id=f"turn{user}", request_id=user, turns=parts))
            given = {"conversation_id": name, "key": "key"}
            await log.append(feedback(f"on {user}", turn_id=f"turn{user}", correction=f"About {question}", **given))
    return names


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's tables without a row, which take seconds to make."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    Registry(f"sqlite:///{path}").experiment("empty")
    return path


@pytest.fixture
def retrained(
    request: pytest.FixtureRequest, tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> Retrained:
    """Curation, mixture, corrections, ingestion, split, Data Docs, rollout, a report and a plan, by the real stages."""
    home = tmp_path / "home"
    monkeypatch.setenv("GRPO_HOME", str(home))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home}/mlflow.db")
    in_memory = getattr(request, "param", "local") == "memory"
    store = f"memory://{tmp_path.name}/artifacts" if in_memory else str(home / "artifacts")
    home.mkdir()
    shutil.copy(database, home / "mlflow.db")
    artifacts, names = ArtifactStore(store), asyncio.run(_serve(home / "served"))
    remember_store(home, store)  # as the flow does before the first stage
    source = ServedSource(
        kind="served", path=str(home / "served"), segments=ServedLog(home / "served").snapshot(), users="script"
    )
    said = [Scenario(id=f"s{k}", user_responses=(f"Parcel {k} is late.",)) for k in range(40)]
    base = put_folder(artifacts, "scenarios", lambda folder: write_scenarios(folder / SCENARIOS_FILE, said) and None)
    divided = split.fn(scenarios=base, validation_fraction=0.2, limit=None, store=store)
    settings = CurationSettings(licences=("own",), required_fields=())
    curated = curate.fn(
        sources=(source,), content=content_hash([source]), base=base, split=divided.split, champion=None,
        settings=settings, store=store,
    )  # fmt: skip
    mixed = build_mixture.fn(
        base=base, split=divided.split, conversations=curated.conversations, new_ids=(), lineage=(),
        settings=MixtureSettings(key_fraction=1.0, user_fraction=1.0), validation_fraction=0.0, seed=0, store=store,
    )  # fmt: skip
    for method in ("sft", "dpo"):
        write_corrections.fn(
            sources=(source,), content=content_hash([source]), mixture=mixed.mixture, settings=settings,
            method=method, max_corrections=9, store=store,
        )  # fmt: skip
    file = FileSource(kind="parquet", path=artifacts.address(mixed.mixture))
    again = ingest.fn(sources=(file,), content=content_hash((file,)), max_quarantined_fraction=0.0, store=store)
    split.fn(scenarios=again.scenarios, validation_fraction=0.2, limit=None, store=store)
    validate.fn(scenarios=again.scenarios, validation_fraction=0.2, store=store)
    for kind in ("rollout", "scored"):
        with artifacts.new_file(kind, ".parquet") as new:
            played = [
                make_trajectory(
                    scenario_id=scenario_id(item.id),
                    turns=tuple(part for served in item.turns for part in served.turns),
                )
                for item in join_served(source).conversations
            ]
            write_trajectories(new.path, played, provenance={"kind": kind})
    answers = AnswerCache(home / "judge" / "answers")
    for user, name in names.items():
        answers.put({"user": user}, f"It asks: {USERS[user]}", scenario_id=scenario_id(name))
    run = home / "nightly"
    run.mkdir()
    shown = {"pairs": [{"scenario_id": f"conversation-{name}", "text": USERS[user]} for user, name in names.items()]}
    for name in ("report.json", "report.html"):
        (run / name).write_text(json.dumps(shown))
    (run / "pending-1.json").write_text(json.dumps({"mixture": file.path}))
    _log_to_mlflow(home, run, source)
    return Retrained(
        home=home, store=store, conversations=names, source=source, base=base, scenarios=again.scenarios,
        curated=curated.conversations,
    )  # fmt: skip


def _log_to_mlflow(home: Path, run: Path, source: ServedSource) -> None:
    """A run with its report, and the traces of a mirror with their assessments."""
    models = Registry(f"sqlite:///{home}/mlflow.db", artifact_root=f"file://{home}/mlartifacts")
    run_id = models.open_run("desk", "nightly", run_key="1", params={})
    models.log_files(run_id, [run / "report.json", run / "report.html"])
    mirrored = TraceStore(f"sqlite:///{home}/mlflow.db", "served")
    for conversation in join_served(source).conversations:
        for served in conversation.turns:
            messages = [part.message for part in served.turns]
            info = trace_info(served, messages, mirrored.experiment_id)
            mirrored.write([(info, spans(served, messages))])
            noted = feedback(f"f{served.id}", comment=messages[0].content)
            for assessment in assessments(replace(noted, conversation_id=served.conversation_id)):
                mirrored.assess(info.trace_id, assessment)


def by_call(retrained: Retrained, user: str) -> dict[str, Any] | None:
    stores = [retrained.store]
    receipt = erase(retrained.log, user=user, home=retrained.home, stores=stores)
    return None if receipt is None else receipt.model_dump(mode="json")


def by_command(retrained: Retrained, user: str) -> dict[str, Any] | None:
    from typer.testing import CliRunner

    from grpo_cli.app import app

    result = CliRunner().invoke(app, ["erase", "--user", user, "--json"])
    document = json.loads(result.stdout)
    assert result.exit_code == (0 if "id" in document else 1), result.output
    return document if "id" in document else None


@pytest.mark.parametrize(
    ("retrained", "call"), [("local", by_call), ("memory", by_command)], indirect=["retrained"], ids=["call", "command"]
)
def test_an_erasure_leaves_nothing_in_any_copy_that_retraining_made(
    retrained: Retrained, call: Callable[[Retrained, str], dict[str, Any] | None]
):
    """Before, the user is in the log, in every kind of artifact, in reports and in MLflow; afterwards nowhere."""
    name = retrained.conversations["anna"]
    words = (name, *SECRETS)
    before = " ".join(retrained.traces(*words))
    for place in ("conversations", "mixture", "corrections", "scenarios/", "rollout", "scored", "report", "judge/"):
        assert place in before, place
    assert "mlflow.db" in before
    receipt = call(retrained, "anna")
    assert retrained.traces(*words) == set()
    assert retrained.traces(retrained.conversations["bert"]) != set()
    assert receipt is not None
    assert (receipt["turns"], receipt["feedback"], receipt["copies"]["mlflow/trace"]) == (1, 1, 1)
    assert {"store/mixture", "store/corrections", "store/scenarios", "home/pending"} <= receipt["copies"].keys()
    assert call(retrained, "anna") == receipt


def test_the_command_says_that_memory_files_of_stopped_servers_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Their path is known to the agent's code only."""
    from typer.testing import CliRunner

    from grpo_cli.app import app

    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    asyncio.run(_serve(tmp_path / "served"))
    result = CliRunner().invoke(app, ["erase", "--user", "anna"])
    assert "no running server has it open, delete that file yourself" in result.output


def test_a_receipt_names_nobody(retrained: Retrained):
    """Neither the user nor the hash in the log, nor an id of a conversation; digests of artifacts are in it."""
    hashed = next(item.user for item in join_served(retrained.source).conversations[0].turns)
    erase(retrained.log, user="anna", home=retrained.home, stores=[retrained.store])
    (path,) = (retrained.log / "erasures" / "receipts").iterdir()
    text = path.read_text()
    assert not any(word in text for word in ("anna", hashed, retrained.conversations["anna"], "Rose"))
    receipt = ErasureReceipt.model_validate_json(text)
    assert retrained.scenarios.sha256 in {item.sha256 for item in receipt.artifacts}
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_next_retraining_reads_what_is_left(retrained: Retrained):
    """Tables that versions refer to are there without the rows; a removed artifact is an error, and not a hit."""
    erase(retrained.log, user="anna", home=retrained.home, stores=[retrained.store])
    artifacts = ArtifactStore(retrained.store)
    known = artifacts.path(artifacts.remaining(retrained.curated)) / REDACTED
    assert [item.id for item in read_scenarios(known)] == [f"conversation-{retrained.conversations['bert']}"]
    version: Any = SimpleNamespace(tags={"scenarios": retrained.scenarios.sha256})
    config = {"scenarios": {"validation_fraction": 0.2}}
    models: Any = SimpleNamespace(provenance=lambda _: SimpleNamespace(config=config))
    data = training_data(models, artifacts, version)
    left = {item.id for item in read_scenarios(artifacts.path(data.scenarios) / SCENARIOS_FILE)}
    assert f"conversation-{retrained.conversations['bert']}" in left
    assert f"conversation-{retrained.conversations['anna']}" not in left
    with pytest.raises(ErasedError, match="was erased, because a user asked for it"):
        artifacts.verify(retrained.scenarios)


def test_a_version_that_was_trained_on_it_cannot_be_reproduced(retrained: Retrained, desk_config: dict[str, object]):
    """The command says that data was erased, instead of that a file is missing."""
    erase(retrained.log, user="anna", home=retrained.home, stores=[retrained.store])
    then: Any = SimpleNamespace(config={**desk_config, "store": retrained.store}, scenarios=retrained.scenarios.sha256)
    with pytest.raises(ReproductionError, match="were erased, because a user asked for it"):
        require_unchanged("models:/desk/1", then)


def receipts(retrained: Retrained) -> list[ErasureReceipt]:
    """Receipts in the log."""
    folder = retrained.log / "erasures" / "receipts"
    return [ErasureReceipt.model_validate_json(path.read_bytes()) for path in folder.glob("*.json")]


def test_an_erasure_that_was_interrupted_is_completed_by_the_next(
    retrained: Retrained, monkeypatch: pytest.MonkeyPatch
):
    """The tracking server does not answer: log, store and home are erased, and counted; once it answers, its copies are
    added."""
    database = f"sqlite:///{retrained.home}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(
        StorageError,
        match=r"not every copy is erased: MLflow was not searched: MLflow at http://127.0.0.1:9 does not answer",
    ):
        erase(retrained.log, user="anna", home=retrained.home, stores=[retrained.store])
    assert "served" not in " ".join(retrained.traces(*SECRETS))
    [first] = receipts(retrained)
    assert (first.status, first.turns, first.feedback) == ("incomplete", 1, 1)
    assert {"store/mixture", "home/report.json"} <= first.copies.keys()
    assert not any(place.startswith("mlflow/") for place in first.copies)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    receipt = erase(retrained.log, user="anna", home=retrained.home, stores=[retrained.store])
    assert receipt is not None
    assert (receipt.status, receipt.turns, receipt.feedback, receipt.copies["mlflow/trace"]) == ("complete", 1, 1, 1)
    assert receipts(retrained) == [receipt]
    assert retrained.traces(retrained.conversations["anna"], *SECRETS) == set()


def test_the_store_of_a_version_that_is_not_believed_is_not_opened(retrained: Retrained, tmp_path: Path):
    """Its tag could name a store of somebody else, or one that does not answer; the receipt names the version."""
    foreign, name = tmp_path / "foreign", retrained.conversations["anna"]
    (foreign / "rollout").mkdir(parents=True)
    (foreign / "rollout" / "0a.json").write_text(json.dumps({"scenario_id": f"conversation-{name}"}))
    client = Registry(f"sqlite:///{retrained.home}/mlflow.db").client
    client.create_registered_model("planted")
    for store in (str(foreign), "nosuchprotocol://bucket/store"):
        tags = {"checkpoint_uri": f"{store}/checkpoint/0a", "scenarios": retrained.scenarios.sha256}
        client.create_model_version("planted", source="file:///nowhere", tags=tags)
    receipt = erase(retrained.log, user="anna", home=retrained.home, stores=[retrained.store])
    assert receipt is not None
    skipped = tuple(f"the store of planted/{number}, which this home has not signed" for number in (1, 2))
    assert (receipt.skipped, receipt.versions) == (skipped, ())
    assert [path.name for path in foreign.rglob("*") if path.is_file()] == ["0a.json"]


def test_an_erasure_that_failed_without_copies_has_its_receipt_once_it_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The tracking server was down, and there was no copy; before, the second attempt found nothing."""
    asyncio.run(_serve(tmp_path / "served"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(StorageError, match="does not answer"):
        erase(tmp_path / "served", user="anna", home=tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    receipt = erase(tmp_path / "served", user="anna", home=tmp_path)
    assert receipt is not None
    assert (receipt.status, receipt.turns, receipt.feedback) == ("complete", 1, 1)


def test_copies_that_a_failed_erasure_has_removed_stay_in_its_receipt(
    retrained: Retrained, monkeypatch: pytest.MonkeyPatch
):
    """A store cannot be read after the first one was erased; digests of both attempts lead to plans and versions."""
    with pytest.raises(StorageError, match="not every copy is erased"):
        erase(retrained.log, user="anna", home=retrained.home, stores=["nosuchprotocol://bucket/store"])
    [first] = receipts(retrained)
    assert (first.status, "store/mixture" in first.copies) == ("incomplete", True)
    receipt = erase(retrained.log, user="anna", home=retrained.home)
    assert receipt is not None
    assert (receipt.status, receipt.copies["home/pending"]) == ("complete", 1)
    assert set(first.artifacts) <= set(receipt.artifacts)


def test_files_of_others_in_a_store_stop_no_erasure_and_are_left(retrained: Retrained):
    """Where a client of MLflow could put them, at another depth or under another name, with bytes that are no text."""
    artifacts = retrained.home / "artifacts"
    digest = "ab" * 32
    foreign = [
        artifacts / "results" / digest / "artifacts" / f"{digest}.json",
        artifacts / "results" / "notes.json",
        artifacts / "scenarios" / digest / "artifacts" / "x.txt",
        artifacts / "erased" / digest / "artifacts" / f"{retrained.scenarios.sha256}.json",
        artifacts / "kept" / digest / "artifacts" / f"{digest}.json",
    ]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff{")
    (artifacts / "results" / f"score-{digest}.json").mkdir()
    (retrained.home / "nightly" / "pending-2.json").write_bytes(b"\xff{")
    receipt = erase(retrained.log, user="anna", home=retrained.home)
    assert receipt is not None
    assert (receipt.status, receipt.copies.get("store/results (unreadable)")) == ("complete", None)
    assert retrained.traces(retrained.conversations["anna"], *SECRETS) == set()
    assert all(path.exists() for path in foreign)


def _cut(path: Path) -> None:
    path.write_bytes(b"PAR1")


def _with_overwritten_pages(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 2] = b"\xff" * (len(content) // 2 - 4)
    path.write_bytes(content)


def _with_other_texts(path: Path) -> None:
    texts = pa.Array.from_buffers(pa.string(), 1, pa.array([b"conversation-\xff"]).buffers())
    pq.write_table(pa.table({"text": texts}), path)


@pytest.mark.parametrize("damage", [_cut, _with_overwritten_pages, _with_other_texts])
def test_a_damaged_copy_is_erased_and_counted(retrained: Retrained, damage: Callable[[Path], None]):
    """Nobody can tell whom it names: a result, and a table of each kind that versions refer to; rows beside it stay."""
    artifacts = retrained.home / "artifacts"
    [result, *_] = sorted((artifacts / "results").glob("*.json"))
    result.write_bytes(result.read_bytes()[:-20])
    damaged = artifacts / "scenarios" / retrained.base.sha256[:20] / "scenarios.parquet"
    assert damaged.exists()
    shutil.copy(damaged, damaged.with_name("whole.parquet"))
    damage(damaged)
    (retrained.home / "mine").mkdir()
    half_written = retrained.home / "mine" / "table.parquet"
    half_written.write_bytes(b"half written")
    receipt = erase(retrained.log, user="anna", home=retrained.home)
    assert receipt is not None
    assert (receipt.status, receipt.copies["store/results (unreadable)"]) == ("complete", 1)
    assert receipt.copies["store/scenarios (unreadable)"] == 1
    assert half_written.exists(), "no table of this package"
    half_written.unlink()
    assert not result.exists()
    assert not damaged.exists()
    left = ArtifactStore(str(artifacts)).remaining(retrained.base)
    assert [path.name for path in ArtifactStore(str(artifacts)).path(left).glob("*.parquet")] == ["whole.parquet"]
    assert retrained.traces(retrained.conversations["anna"], *SECRETS) == set()


@pytest.mark.parametrize("retrained", ["memory"], indirect=True)
def test_a_damaged_object_is_erased_and_counted(retrained: Retrained):
    """In an object store, where a copy is verified before it is read."""
    file_system, root = fsspec.core.url_to_fs(retrained.store)
    [part, *_] = sorted(path for path in file_system.find(f"{root}/scenarios") if path.endswith(".parquet"))
    file_system.pipe_file(part, b"PAR1")
    shutil.rmtree(user_temp_folder() / "fetched", ignore_errors=True)
    receipt = erase(retrained.log, user="anna", home=retrained.home, stores=[retrained.store])
    assert receipt is not None
    assert (receipt.status, receipt.copies["store/scenarios (unreadable)"]) == ("complete", 1)
    assert retrained.traces(retrained.conversations["anna"], *SECRETS) == set()


def test_a_store_of_a_refused_candidate_is_erased(retrained: Retrained):
    """`store: runs/other`, of which no version is registered, and one that is a level deeper."""
    (retrained.home / "artifacts").rename(retrained.home / "other")
    shutil.copytree(retrained.home / "other", retrained.home / "candidates" / "first")
    assert any(place.startswith("other/") for place in retrained.traces(*SECRETS))
    receipt = erase(retrained.log, user="anna", home=retrained.home)
    assert receipt is not None
    assert receipt.copies["store/mixture"] == 2
    assert retrained.traces(retrained.conversations["anna"], *SECRETS) == set()


@pytest.mark.parametrize("reader", ["scenarios", "sft"])
def test_a_run_that_reads_a_log_remembers_its_store(retrained: Retrained, tmp_path: Path, reader: str):
    """Also if every stage is a cache hit, because another home has run the same before."""
    store, source = str(tmp_path / "elsewhere"), {"kind": "served", "path": str(retrained.home / "served")}
    fields: dict[str, Any] = {"name": "any", "store": store, "registry": {"model_name": "any"}}
    fields |= {"policy": {"model": str(DESK_MODEL)}, "environment": {"kind": "support_desk"}}
    fields["reward"] = [{"kind": "checks", "weight": 1}]
    fields["scenarios"] = {"sources": [source if reader == "scenarios" else {"kind": "jsonl", "path": "x"}]}
    if reader == "sft":
        fields["sft"] = {"demonstrations": {**source, "licences": ["own"]}}
    config = PipelineConfig.model_validate(fields)
    for _ in range(2):
        shutil.rmtree(retrained.home / "services")
        with executed_by(InProcessExecutor()):
            if reader == "scenarios":
                prepare_scenarios(config.scenarios, store=store, validation_fraction=1.0)
            else:
                with_written_data(config)
        assert stores_in(retrained.home) == {str(retrained.home / "artifacts"), store}


def test_a_store_that_is_gone_stops_nothing_else_and_its_remedy_is_named(retrained: Retrained):
    """A bucket that was removed: all other places are erased, and the erasure is complete once it is forgotten."""
    remember_store(retrained.home, "gone://bucket/artifacts")
    with pytest.raises(StorageError, match="the store gone://bucket/artifacts was not searched: ") as caught:
        erase(retrained.log, user="anna", home=retrained.home)
    assert retrained.traces(retrained.conversations["anna"], *SECRETS) == set()
    (path,) = re.findall(r"If this store is gone for good, remove (\S+\.address)", str(caught.value))
    Path(path).unlink()
    receipt = erase(retrained.log, user="anna", home=retrained.home)
    assert receipt is not None
    assert receipt.status == "complete"


def test_a_folder_of_a_store_that_is_not_there_is_no_searched_store(retrained: Retrained, tmp_path: Path):
    """A misspelt --store, a disk that is not mounted, and a home that does not exist."""
    typo, unmounted = tmp_path / "typo", tmp_path / "disk"
    remember_store(retrained.home, str(unmounted))
    with pytest.raises(StorageError, match="the folder does not exist") as caught:
        erase(retrained.log, user="anna", home=retrained.home, stores=[str(typo)])
    assert str(typo) in str(caught.value)
    assert re.search(rf"the store {unmounted} was not searched.*remove \S+\.address", str(caught.value))
    assert retrained.traces(retrained.conversations["anna"], *SECRETS) == set()
    with pytest.raises(StorageError, match="is not a folder, so that no copies of the conversations were searched"):
        erase(retrained.log, user="anna", home=tmp_path / "nohome")


def test_a_place_that_fails_in_any_way_holds_up_no_other(retrained: Retrained, monkeypatch: pytest.MonkeyPatch):
    """An object store's client has errors of its own, and MLflow does not answer."""

    def fail(store: ArtifactStore, mentions: object) -> None:
        raise RuntimeError("the client of the bucket")

    with monkeypatch.context() as patch:
        patch.setattr("grpo.serving.erasure.erase_from_store", fail)
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        with pytest.raises(
            StorageError, match=r"MLflow was not searched: MLflow at \S+ does not answer.*the client of the bucket"
        ):
            erase(retrained.log, user="anna", home=retrained.home)
    assert not any(place.endswith("report.json") for place in retrained.traces(*SECRETS) if "mlartifacts" not in place)
    erase(retrained.log, user="anna", home=retrained.home)
    assert retrained.traces(retrained.conversations["anna"], *SECRETS) == set()


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_store_that_was_moved_is_erased_at_its_new_address(retrained: Retrained, tmp_path: Path, prefix: str):
    """No version names the new address, and no run has written there since."""
    shutil.rmtree(retrained.home / "services")
    elsewhere = tmp_path / "elsewhere"
    shutil.move(retrained.store, elsewhere)
    remember_store(retrained.home, f"{prefix}{elsewhere}")
    move_store(str(elsewhere), str(tmp_path / "moved"))
    moved = replace(retrained, home=tmp_path / "moved")
    assert moved.traces(*SECRETS) != set()
    receipt = erase(retrained.log, user="anna", home=retrained.home)
    assert receipt is not None
    assert {"store/mixture", "store/corrections"} <= receipt.copies.keys()
    assert moved.traces(retrained.conversations["anna"], *SECRETS) == set()


def test_a_deleted_experiment_keeps_nothing(retrained: Retrained):
    """It can be restored, with its reports and traces."""
    client = Registry(f"sqlite:///{retrained.home}/mlflow.db").client
    for experiment in client.search_experiments(filter_string="name != 'Default'"):
        client.delete_experiment(experiment.experiment_id)
    receipt = erase(retrained.log, user="anna", home=retrained.home)
    assert receipt is not None
    assert (receipt.copies["mlflow/trace"], receipt.copies["mlflow/report.json"]) == (1, 1)
    assert retrained.traces(retrained.conversations["anna"], *SECRETS) == set()


def test_files_that_the_server_keeps_for_a_client_are_erased_without_the_server(
    retrained: Retrained, monkeypatch: pytest.MonkeyPatch
):
    """An experiment at `mlflow-artifacts:/theirs`, whose files lie in the home."""
    monkeypatch.setenv("GRPO_HOME", str(retrained.home))
    client = Registry(f"sqlite:///{retrained.home}/mlflow.db").client
    theirs = client.create_experiment("theirs", artifact_location="mlflow-artifacts:/theirs")
    run = client.create_run(theirs)
    folder = retrained.home / "mlartifacts" / "theirs" / run.info.run_id / "artifacts"
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(f'{{"of": "conversation-{retrained.conversations["anna"]}"}}')
    receipt = erase(retrained.log, user="anna", home=retrained.home)
    assert receipt is not None
    assert (receipt.status, receipt.copies["mlflow/report.json"]) == ("complete", 2)
    assert not (folder / "report.json").exists()


def test_a_document_without_a_receipt_gets_one(retrained: Retrained):
    """As after a kill between the two."""
    erase(retrained.log, user="anna", home=retrained.home)
    shutil.rmtree(retrained.log / "erasures" / "receipts")
    receipt = erase(retrained.log, user="anna", home=retrained.home)
    assert receipt is not None
    assert (receipt.status, receipts(retrained)) == ("complete", [receipt])


@pytest.mark.parametrize("call", [by_call, by_command])
def test_erasing_nobody_writes_no_receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any):
    """The documented call of before, with a hash instead of a name, is such a case."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    names = asyncio.run(_serve(tmp_path / "served"))
    home: Any = SimpleNamespace(log=tmp_path / "served", home=tmp_path, store=str(tmp_path / "artifacts"))
    assert call(home, "nobody") is None
    assert not list((tmp_path / "served" / "erasures").iterdir())
    assert len(join_served(ServedSource(kind="served", path=str(tmp_path / "served"))).conversations) == len(names)


def test_the_hash_of_a_user_needs_an_open_log(tmp_path: Path):
    """Before, it was made with an empty salt and found nobody."""
    with pytest.raises(StorageError, match=r"is not open\. Enter `async with ServingLog"):
        ServingLog(tmp_path).user_hash("anna")


def test_a_folder_without_a_log_is_refused(tmp_path: Path):
    """A misspelt folder is not a log without that user."""
    with pytest.raises(ConfigError, match="is not the folder of a serving log"):
        erase(tmp_path / "elsewhere", user="anna", home=tmp_path)
