"""Homes of earlier releases, which the code of each has written: a store, a registry, keys and a report.

    1    25 November 2026: documents of the store and versions of the registry without signatures
    2    28 November 2026: signed, with records of promotions that name no time
    3    28 November 2026: this release, in the form that the next ones will have to read

Each home had two runs of `grpo train`, the second of which was promoted, and a rollback to the first. Weights and
other large files are left out.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo.artifacts import Artifact, ArtifactStore
from grpo.errors import ArtifactError, ConfigError, SignatureError
from grpo.evaluation.report import read_report
from grpo.policy.weights.promotion_records import Actor
from grpo.registry.store import Registry
from grpo.registry.versions import list_versions
from grpo.serving.access.keys import KeyStore
from grpo.storage.databases import upgrade_tracking
from grpo.store_move import move_store
from grpo_local.moving import move_records
from grpo_local.upgrade import upgrade
from tests.places import ROOT

HOMES = ROOT / "tests" / "schemas"
BEN = Actor(user="ben", host="laptop")


@pytest.fixture(params=[1, 2, 3])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def older(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the home of a version, which is that of this process."""
    home = tmp_path / "home"
    shutil.copytree(HOMES / f"home-{version}", home)
    for path in home.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)  # git does not keep modes
    with closing(sqlite3.connect(home / "mlflow.db")) as database:
        dump = home / "mlflow.sql.gz"
        database.executescript(gzip.decompress(dump.read_bytes()).decode())
        dump.unlink()
    for name in [name for name in os.environ if name.startswith("PREFECT_API_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("GRPO_SIGNING_KEY", raising=False)
    monkeypatch.setenv("GRPO_HOME", str(home))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}")
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", f"sqlite+aiosqlite:///{home / 'prefect' / 'prefect.db'}")
    return home


def _contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def _documents(store: ArtifactStore) -> list[str]:
    names = [name for folder in ("results", "kept") for name in store.documents.names(folder)]
    return [*names, *store.documents.names("kept", depth=2)]


def _artifacts(store: ArtifactStore) -> list[Artifact]:
    """The artifacts of the results that are in the home."""
    results = [store.documents.read(name) for name in store.documents.names("results")]
    named = [value for result in results for value in result.values() if isinstance(value, dict) and "sha256" in value]
    return [store.own(Artifact(**value)) for value in named if value["kind"] in ("split", "data_docs")]


def test_a_dry_run_says_what_changes_and_changes_nothing(older: Path, version: int):
    """`grpo migrate --dry-run`: documents without signatures are counted, and files of others become private."""
    from grpo_cli.app import app

    (older / "keys.json").chmod(0o644)
    before = _contents(older)
    shown = CliRunner().invoke(app, ["migrate", "--dry-run"])
    assert shown.exit_code == 0, shown.output
    *changes, last = shown.output.splitlines()
    assert last == "nothing was changed"
    assert _contents(older) == before
    signed = [
        change
        for change in changes
        if change.endswith("which an earlier version wrote without a signature, are signed")
    ]
    count = len(_documents(ArtifactStore(str(older / "artifacts"))))
    assert signed == (
        [f"{count} documents of {older / 'artifacts'}, which an earlier version wrote without a signature, are signed"]
        if version == 1
        else []
    )
    assert any("which others can read, become private" in change for change in changes)
    assert any(change.endswith("prefect.db, is created") for change in changes)


def test_documents_of_the_store_are_read_and_those_without_a_signature_after_a_migration(older: Path, version: int):
    """Each result names its artifacts, which match their digests, also in a store to which they were moved."""
    store = ArtifactStore(str(older / "artifacts"))
    names = _documents(store)
    assert len(names) > 20
    if version == 1:
        with pytest.raises(
            ArtifactError, match=r"is not signed\. `grpo store sign .*` signs documents of an earlier"
        ) as refused:
            store.documents.read(names[0])
        assert "\n" not in str(refused.value)
        list(upgrade(older))
    assert all(store.documents.read(name) for name in names)
    kinds = {artifact.kind for artifact in _artifacts(store)}
    assert kinds == {"split", "data_docs"}
    for artifact in _artifacts(store):
        store.verify(artifact)
    moved = move_store(store.uri, str(older / "moved"))
    assert (moved.damaged, moved.documents) == ((), len(names))
    assert [artifact.sha256 for artifact in _artifacts(ArtifactStore(moved.target))]


def test_a_registry_without_signatures_is_refused_in_one_line_and_later_ones_are_believed(older: Path, version: int):
    """The line says what to do. Versions of later releases and their promotions are believed, and promotions go on."""
    uri = f"sqlite:///{older / 'mlflow.db'}"
    with pytest.raises(ConfigError, match=f"was moved or copied from /tmp/home-{version} to .*`grpo migrate --moved`"):
        Registry(uri).versions("desk")
    assert f"the records name {older} now, instead of /tmp/home-{version}" in list(move_records(older))
    upgrade_tracking(uri)  # a later MLflow has another schema
    registry = Registry(uri)
    listed = {row.version: row for row in list_versions(registry)}
    assert {number: row.verdict for number, row in listed.items()} == {1: "promote", 2: "promote"}
    if version == 1:
        assert all(
            "is not signed, so nothing in it is trusted. `grpo admit" in str(row.refusal) for row in listed.values()
        )
        for read in (lambda: registry.resolve("models:/desk/1"), lambda: registry.champion("desk")):
            with pytest.raises(SignatureError) as refused:
                read()
            assert "\n" not in str(refused.value)
        return
    assert [row.refusal for row in listed.values()] == [None, None]
    champion = registry.champion("desk")
    assert champion is not None
    assert champion.version == 1
    assert registry.provenance(champion).config["name"] == "desk"
    log = registry.promotions("desk")
    assert [(change.action, change.champion) for change in log.history()] == [
        ("promote", 1),
        ("promote", 2),
        ("rollback", 1),
    ]
    log.promote(2, reason="again", by=BEN, force=True)
    assert [change.champion for change in Registry(uri).promotions("desk").history()] == [1, 2, 1, 2]


def test_keys_of_the_chat_server_are_read(older: Path):
    """With their scopes."""
    (key,) = KeyStore(older / "keys.json").list()
    assert (key.name, set(key.scopes)) == ("shop", {"chat", "feedback"})


def test_a_report_is_read(older: Path):
    """Reports have had one schema since 22 November 2026."""
    report = older / "desk" / "report.json"
    report.write_bytes(gzip.decompress(report.with_name("report.json.gz").read_bytes()))
    assert json.loads(report.read_bytes())["schema_version"] == "2"
    document = read_report(report)
    assert document.decision.verdict == "promote"
