"""Versions and promotions that somebody with write access to MLflow has made or changed, at every reader."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pytest
import yaml

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.version_tags import SIGNATURE, SIGNED
from grpo.errors import (
    ArtifactError,
    ConfigError,
    GRPOError,
    PromotionRefused,
    RegistryError,
    ReproductionError,
    SignatureError,
)
from grpo.evaluation.schema import Evaluation
from grpo.policy.transformers.model import load
from grpo.policy.weights.promotion_records import record_key, write_record
from grpo.policy.weights.registered import tracking_uri
from grpo.policy.weights.sources import model_source
from grpo.registry import ModelVersion, Registry
from grpo.registry.admission import admit, examined
from grpo.registry.export import export
from grpo.registry.lineage import trace_lineage
from grpo.registry.recorded_config import recorded_config
from grpo.registry.served_agent import served_agent
from grpo.registry.versions import list_versions
from grpo.retraining.champion import champion
from grpo.serving.engine.registered import WatchedVersion
from grpo.storage.databases import exclusive
from grpo.storage.moved import rewrite_places
from grpo.storage.signing import KEY, key_file
from grpo_flows.plans.reproduce import plan_reproduction
from grpo_flows.reproduce import reproduce, require_unchanged
from grpo_tasks.model_addresses import stored_checkpoint
from grpo_tasks.registry import registry as current_registry
from tests.doubles import DESK_SCENARIOS, put_folder
from tests.grpo.evaluation.test_html_report import document, evaluation
from tests.grpo.registry.making import ANNA, BEN, make_provenance, put_into_service, put_version, serving
from tests.grpo.registry.test_promotions import Dying, Killed
from tests.grpo.registry.test_served_agent import registered

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals


@dataclass(frozen=True)
class Place:
    """A registry with a champion, as an attacker with a colleague's login finds it."""

    folder: Path
    models: Registry
    version: ModelVersion

    @property
    def name(self) -> str:
        return self.version.name

    def files(self) -> Path:
        """Files of the registered model."""
        with self.models.model_folder(self.version) as folder:
            return folder

    def register(self, tags: dict[str, str], source: str | None = None) -> str:
        """Register a version of this model with MLflow's own client; returns its address."""
        version = self.models.client.create_model_version(
            self.name, source=source or self.version.source, run_id=self.version.run_id, tags=tags
        )
        return f"models:/{self.name}/{version.version}"

    def tags(self) -> dict[str, str]:
        """All tags of the champion, its signature too."""
        return dict(self.models.client.get_model_version(self.name, str(self.version.version)).tags)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Iterator[Place]:
    """One for all attacks: each adds a version, or puts back what it has changed."""
    folder = tmp_path_factory.mktemp("attacked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        version = registered(folder, tiny_folder)
        models = current_registry()
        put_into_service(models, version.name, version.version)
        yield Place(folder=folder, models=models, version=version)


@pytest.fixture(autouse=True)
def _registry_of_the_place(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place.models.tracking_uri)
    mlflow.set_tracking_uri(place.models.tracking_uri)


def _exported(place: Place, address: str) -> None:
    export(place.models, address, place.folder / "exported")


def _promoted(place: Place, address: str) -> None:
    number = int(address.rpartition("/")[2])
    place.models.promote(place.name, number, reason="it is mine", by=BEN, force=True)


READERS: dict[str, Callable[[Place, str], object]] = {
    "serve": lambda place, address: WatchedVersion(place.models, address)(""),
    "evaluate": lambda place, address: stored_checkpoint(address),
    "export": _exported,
    "promote": _promoted,
    "promote --dry-run": lambda place, address: place.models.plan_promotion(
        place.name, int(address.rpartition("/")[2]), reason="it is mine", by=BEN
    ),
    "reproduce": lambda place, address: reproduce.fn(address),
    "reproduce --dry-run": lambda place, address: plan_reproduction(address),
    "policy.model": lambda place, address: model_source(address),
    "lineage": lambda place, address: trace_lineage(place.models, place.models.resolve(address)),
}


def _unsigned(place: Place) -> str:
    """As a person registers a model in MLflow's page, with every other tag of the champion."""
    return place.register({name: value for name, value in place.tags().items() if name != SIGNATURE})


def _other_weights(place: Place) -> str:
    return place.register(place.tags() | {"checkpoint_uri": "/tmp/mine", "checkpoint_sha256": "ab" * 32})


def _other_verdict(place: Place) -> str:
    return place.register(place.tags() | {"verdict": "refuse"})


def _more_tags(place: Place) -> str:
    """A tag that the version did not have and that code believes."""
    return place.register(place.tags() | {"started_from": "ab" * 32})


def _signed_for_another_model(place: Place) -> str:
    """A signature of this home, of a model of another name."""
    put_version(place.models, "another-model", "x", against="base")
    tags = dict(place.models.client.get_model_version("another-model", "1").tags)
    return place.register(tags)


def _other_key(place: Place) -> str:
    """Signed in an attacker's own home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY, "attacker" * 4)
        from grpo.policy.weights.registered import signed_tags

        tags = signed_tags(place.name, run_id=place.version.run_id, tags=place.tags())
    return place.register(tags)


def _garbage(place: Place) -> str:
    return place.register(place.tags() | {SIGNATURE: "[" * 5000})


ATTACKS: dict[str, tuple[Callable[[Place], str], str]] = {
    "unsigned": (_unsigned, "is not signed"),
    "other weights": (_other_weights, r"was changed after it was signed \(tag checkpoint_uri\)"),
    "other verdict": (_other_verdict, r"was changed after it was signed \(tag verdict\)"),
    "more tags": (_more_tags, r"was changed after it was signed \(tag started_from\)"),
    "of another model": (_signed_for_another_model, r"was changed after it was signed \(name\)"),
    "of another key": (_other_key, r"was signed with another key than the one of .*signing\.key"),
    "garbage": (_garbage, "is not signed"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_version_that_is_not_believed_is_refused_by_every_reader(place: Place, attack: str):
    """One line with the reason and the command that admits it; the champion stays, and nothing is written."""
    make, reason = ATTACKS[attack]
    address = make(place)
    for reader, read in READERS.items():
        with pytest.raises(SignatureError, match=rf"^{address} {reason}, so nothing .* `grpo admit {address}") as error:
            read(place, address)
        assert "\n" not in str(error.value), reader
    assert serving(place.models, place.name)[0] == place.version.version
    assert not (place.folder / "exported").exists()
    row = next(row for row in list_versions(place.models, place.name) if row.address == address)
    assert row.refusal is not None
    assert not row.in_service


@pytest.mark.parametrize("tag", SIGNED)
def test_each_believed_tag_is_signed(place: Place, tag: str):
    """Changed in place, as MLflow's page lets anyone do: also where the version did not have it."""
    client, number = place.models.client, str(place.version.version)
    before = place.tags().get(tag)
    client.set_model_version_tag(place.name, number, tag, "changed")
    try:
        with pytest.raises(SignatureError, match=rf"\(tag {tag}\)"):
            place.models.resolve(f"models:/{place.name}@champion")
        assert place.models.find(place.name, place.version.tags["run_key"]) != place.version
        assert place.version not in place.models.versions(place.name)
    finally:
        if before is None:
            client.delete_model_version_tag(place.name, number, tag)
        else:
            client.set_model_version_tag(place.name, number, tag, before)
    assert place.models.resolve(f"models:/{place.name}@champion") == place.version


def test_tags_of_the_user_are_not_signed(place: Place):
    """A note that someone writes beside a version changes nothing."""
    place.models.client.set_model_version_tag(place.name, str(place.version.version), "note", "read by Anna")
    assert place.models.resolve(place.version.address) == place.version


@pytest.mark.parametrize(
    ("file", "readers"),
    [
        ("MLmodel", ["serve", "export", "promote", "promote --dry-run", "reproduce", "reproduce --dry-run", "lineage"]),
        ("model/model.safetensors", ["export", "promote", "promote --dry-run"]),
        ("components/tokenizer/tokenizer.json", ["export", "promote", "promote --dry-run"]),
        ("planted.py", ["export", "promote", "promote --dry-run"]),
    ],
)
def test_changed_files_of_the_registered_model_are_refused_by_those_that_read_them(
    place: Place, file: str, readers: list[str]
):
    """Other readers take the checkpoint, whose digest is signed as well. The file is put back, and all is well."""
    path = place.files() / file
    content = path.read_bytes() if path.exists() else None
    path.write_bytes((content or b"") + b"\n# changed\n")
    second = place.register(place.tags())  # a copy, which is not champion yet
    try:
        for reader in readers:
            with pytest.raises((SignatureError, ArtifactError), match=r"was changed|damaged or was swapped"):
                READERS[reader](place, second)
    finally:
        path.write_bytes(content) if content is not None else path.unlink()
    place.models.verify(place.version)


def test_a_planted_config_is_not_validated_before_its_digest_holds(place: Place, monkeypatch: pytest.MonkeyPatch):
    """A validated config puts folders on the import path: the folder of the artifacts is not there afterwards."""
    import sys

    path = place.files() / "MLmodel"
    content = path.read_text()
    document = yaml.safe_load(content)
    document["metadata"]["provenance"]["config"]["import_from"] = str(path.parent)
    path.write_text(yaml.safe_dump(document))
    try:
        with pytest.raises(SignatureError, match="its file MLmodel has sha256"):
            served_agent(place.models, place.version)
    finally:
        path.write_text(content)
    assert str(path.parent) not in sys.path


def test_files_in_another_place_are_believed_by_their_digest(place: Place):
    """The place is not signed, since a moved home has another one: a copy is as good, and a changed copy is refused."""
    folder = place.folder / "other-files"
    shutil.copytree(place.files(), folder)
    address = place.register(place.tags(), source=folder.as_uri())
    place.models.verify(place.models.resolve(address))
    (folder / "MLmodel").write_bytes((folder / "MLmodel").read_bytes() + b"\n")
    for reader in ("serve", "export", "promote", "reproduce", "lineage"):
        with pytest.raises((SignatureError, ArtifactError), match=r"was changed|damaged or was swapped"):
            READERS[reader](place, address)


def test_a_moved_home_believes_its_versions_and_names_no_place_of_before(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """A version with a path as source, and a config with store, model and sources in the home, as retraining has it."""
    old, new = tmp_path / "old", tmp_path / "a new place"
    monkeypatch.setenv("GRPO_HOME", str(old))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{old}/mlflow.db")
    shutil.copytree(tiny_folder, old / "model")
    rows = old / "mixture.jsonl"
    shutil.copy(DESK_SCENARIOS, rows)
    first = registered(old, old / "model", scenarios={"sources": [{"kind": "jsonl", "path": str(rows)}]})
    models = current_registry()
    with models.model_folder(first) as files:
        tags = dict(models.client.get_model_version(first.name, "1").tags)
        admitted = models.client.create_model_version(first.name, source=files.as_uri(), run_id=first.run_id, tags=tags)
    store = ArtifactStore(str(old / "store"))
    gone = put_folder(store, "scenarios", lambda folder: (folder / "a.txt").write_text("erased") and None)
    old.rename(new)
    monkeypatch.setenv("GRPO_HOME", str(new))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{new}/mlflow.db")
    with exclusive(f"sqlite:///{new}/mlflow.db"):
        rewrite_places(new / "mlflow.db")
    models = current_registry()
    for number in ("1", admitted.version):
        version = models.resolve(f"models:/{first.name}/{number}")
        models.verify(version)
        then = models.provenance(version)
        assert str(old) not in then.model_dump_json()
        config = recorded_config(version.address, then)
        assert (config.store, config.policy.model) == (f"{new}/store", f"{new}/model")
        assert trace_lineage(models, version).parents[-1].model == f"{new}/model"
    ArtifactStore(f"{new}/store").erase(gone, None)
    then = then.model_copy(update={"scenarios": gone.sha256})
    with pytest.raises(ReproductionError, match="were erased, because a user asked for it"):
        require_unchanged(version.address, then)
    assert not old.exists()


@pytest.mark.parametrize("below", ["mlartifacts/1/models", "artifacts/code"])
def test_a_signed_config_does_not_import_from_a_folder_of_artifacts(tmp_path: Path, home: Path, below: str):
    """Others can put files there after it was signed."""
    import sys

    folder = home / below
    provenance = make_provenance(config={"name": "short", "import_from": str(folder)})
    with pytest.raises(ConfigError, match=r"models:/desk/3 imports code from .*, a folder of artifacts"):
        recorded_config("models:/desk/3", provenance)
    assert str(folder) not in sys.path


@pytest.mark.parametrize("command", [reproduce.fn, plan_reproduction])
def test_a_reproduction_checks_the_import_folders_before_it_reads_the_config(
    tmp_path: Path, tiny_folder: Path, home: Path, command: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
):
    """The run of the version was signed, and its code lies where others can put files."""
    import sys

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    folder = home / "artifacts" / "code"
    folder.mkdir(parents=True, exist_ok=True)
    version = registered(tmp_path, tiny_folder, import_from=str(folder))
    sys.path.remove(str(folder))
    with pytest.raises(ConfigError, match=r"imports code from .*, a folder of artifacts"):
        command(version.address)
    assert str(folder) not in sys.path


def test_a_copy_under_another_number_is_not_in_service(place: Place):
    """A copied set of signed tags is the same version again: the alias alone does not put it into service."""
    copy = place.register(place.tags())
    number = int(copy.rpartition("/")[2])
    place.models.client.set_registered_model_alias(place.name, "champion", str(number))
    try:
        assert place.models.resolve(f"models:/{place.name}@champion") == place.version
    finally:
        place.models.client.set_registered_model_alias(place.name, "champion", str(place.version.version))


# --- promotions


def _two(registry: Registry, model: str) -> None:
    """Version 1 was promoted, then 2; version 3 was refused by its gates."""
    for checkpoint, against, verdict in (("a", "base", "promote"), ("b", "a", "promote"), ("c", "b", "refuse")):
        put_version(registry, model, checkpoint, against=against, verdict=verdict)
    for version in (1, 2):
        registry.promotions(model).promote(version, reason="gates", by=ANNA)


def test_signed_versions_do_not_enter_service_under_numbers_of_others(registry: Registry):
    """The tags of version 1 on version 2, and a model that was made again with the refused version as number 2."""
    _two(registry, "replayed")
    versions = {number: registry.client.get_model_version("replayed", str(number)) for number in (1, 2, 3)}
    records = registry.client.get_registered_model("replayed").tags
    for tag, value in versions[1].tags.items():
        registry.client.set_model_version_tag("replayed", "2", tag, value)
    with pytest.raises(SignatureError, match="models:/replayed/2 was replaced after its promotion"):
        registry.champion("replayed")
    registry.client.delete_registered_model("replayed")
    registry.client.create_registered_model("replayed")
    for version in (versions[1], versions[3]):
        registry.client.create_model_version(
            "replayed", source=version.source, run_id=version.run_id, tags=dict(version.tags)
        )
    for tag, value in records.items():
        registry.client.set_registered_model_tag("replayed", tag, value)
    with pytest.raises(SignatureError, match=r"model replayed was deleted and made again in MLflow"):
        registry.champion("replayed")


def test_an_alias_that_was_moved_by_hand_changes_nothing_and_is_told(registry: Registry):
    """Version 3 failed its gates; the alias names it, and version 2 goes on. Card, list and lineage say so."""
    _two(registry, "by-hand")
    registry.client.set_registered_model_alias("by-hand", "champion", "3")
    champion = registry.champion("by-hand")
    assert champion is not None
    assert (champion.version, registry.resolve("models:/by-hand@champion").version) == (2, 2)
    told = (
        "the alias champion of by-hand was moved by hand to version 3. Version 2 was promoted: `grpo promote "
        "models:/by-hand/2 --reason WHY` puts it back, `grpo promote models:/by-hand/3 --reason WHY` promotes it"
    )
    assert registry.promotions("by-hand").state().moved == told
    rows = {row.version: row for row in list_versions(registry, "by-hand")}
    assert {number: row.moved for number, row in rows.items()} == {1: None, 2: told, 3: told}
    assert {number for number, row in rows.items() if row.in_service} == {2}
    registry.describe("by-hand")
    description = registry.client.get_registered_model("by-hand").description
    assert "**Champion: version 2**" in description
    assert "was moved by hand to version 3. Version 2 was promoted" in description
    assert registry.promotions("by-hand").promote(2, reason="back", by=ANNA) is None
    assert serving(registry, "by-hand") == (2, 1)
    assert registry.promotions("by-hand").state().moved is None


def test_a_setting_follows_the_alias(registry: Registry):
    """The version that it names is champion: a candidate that was compared with it replaces it."""
    _two(registry, "followed")
    registry.client.set_registered_model_alias("followed", "champion", "3")
    champion = registry.champion("followed", follow_alias=True)
    assert champion is not None
    assert (champion.version, registry.resolve("models:/followed@champion", follow_alias=True).version) == (3, 3)
    candidate = put_version(registry, "followed", "d", against="c")
    with pytest.raises(PromotionRefused, match="not evaluated against the policy of version 2"):
        registry.promotions("followed").promote(candidate, reason="gates", by=ANNA)
    change = registry.promotions("followed").promote(candidate, reason="gates", by=ANNA, follow_alias=True)
    assert change is not None
    assert (change.champion, change.replaced, change.previous, change.forced) == (4, 3, 3, False)


def test_an_alias_without_a_promotion_serves_nothing_and_trains_nothing(registry: Registry):
    """As in a registry of a release that did not sign: the message has the command."""
    put_version(registry, "never", "a", against="base")
    registry.client.set_registered_model_alias("never", "champion", "1")
    reason = (
        "alias champion of never names version 1, and no promotion of never is signed: `grpo promote models:/never/1"
    )
    for ask in (lambda: registry.champion("never"), lambda: registry.resolve("models:/never@champion")):
        with pytest.raises(SignatureError, match=reason):
            ask()
    registry.promotions("never").promote(1, reason="gates", by=ANNA)
    assert registry.resolve("models:/never@champion").version == 1


def test_the_alias_is_followed_before_the_first_promotion(registry: Registry):
    """The version that it names is promoted, which signs it."""
    put_version(registry, "followed-first", "a", against="base")
    registry.client.set_registered_model_alias("followed-first", "champion", "1")
    change = registry.promotions("followed-first").promote(1, reason="gates", by=ANNA, follow_alias=True)
    assert change is not None
    assert (change.champion, change.previous, change.forced) == (1, None, False)
    assert registry.resolve("models:/followed-first@champion").version == 1


@pytest.mark.parametrize(("follow", "restored"), [(True, 2), (False, 1)])
def test_a_rollback_goes_back_from_the_version_in_service(registry: Registry, follow: bool, restored: int):
    """1 and 2 were promoted, and the alias was moved to 3 by hand: 3 is in service only where the alias is followed."""
    model = f"rolled-back-{follow}".lower()
    _two(registry, model)
    registry.client.set_registered_model_alias(model, "champion", "3")
    assert registry.promotions(model).plan_rollback(reason="x", by=ANNA, follow_alias=follow).change is not None
    change = registry.promotions(model).rollback(reason="refunds", by=ANNA, follow_alias=follow)
    assert change.champion == restored
    assert serving(registry, model)[0] == restored


def test_a_reason_in_another_script_fits_into_the_longest_tag(registry: Registry):
    """1,000 characters of Chinese, which were 6,414 as escapes; PostgreSQL stores 5,000. A longer record is refused."""
    put_version(registry, "script", "a", against="base")
    change = registry.promotions("script").promote(1, reason="退" * 1000, by=ANNA)
    assert change is not None
    text = registry.client.get_registered_model("script").tags[record_key(1)]
    assert len(text) < 5000
    assert registry.promotions("script").history()[0].reason == "退" * 1000
    many = change.model_copy(update={"number": 2, "checks": {f"improvement in metric {k}": 0.5 for k in range(200)}})
    with pytest.raises(RegistryError, match=r"has [0-9],[0-9]{3} characters, .* at most 5,000: shorten the reason"):
        write_record(registry.client, "script", many)
    assert record_key(2) not in registry.client.get_registered_model("script").tags


def test_a_longer_spelling_of_a_number_is_no_record(registry: Registry):
    """`promotion.00002` with the text of the second record, whose own tag is gone."""
    _two(registry, "spelled")
    text = registry.client.get_registered_model("spelled").tags[record_key(2)]
    registry.client.set_registered_model_tag("spelled", "promotion.00002", text)
    assert [change.number for change in registry.promotions("spelled").history()] == [1, 2]
    registry.client.delete_registered_model_tag("spelled", record_key(2))
    with pytest.raises(SignatureError, match=r"the record promotion\.0002 of model spelled was removed"):
        registry.promotions("spelled").state()


def test_a_moved_home_remembers_the_promotions_that_it_has_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its registry has another address there, and the last record is removed."""
    old, new = tmp_path / "old", tmp_path / "new"
    monkeypatch.setenv("GRPO_HOME", str(old))
    models = Registry(f"sqlite:///{old}/mlflow.db", artifact_root=f"file://{old}/mlartifacts")
    _two(models, "moving")
    old.rename(new)
    monkeypatch.setenv("GRPO_HOME", str(new))
    moved = Registry(f"sqlite:///{new}/mlflow.db")
    assert moved.promotions("moving").state().champion == 2
    moved.client.delete_registered_model_tag("moving", record_key(2))
    with pytest.raises(SignatureError, match=r"the record promotion\.0002 of model moving was removed"):
        moved.promotions("moving").state()


def test_a_home_remembers_promotions_at_each_address_of_its_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also if the registry is opened over a server, whose address is another one. Here it is another path."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    models = Registry(f"sqlite:///{tmp_path}/mlflow.db", artifact_root=f"file://{tmp_path}/mlartifacts")
    _two(models, "twice")
    models.client.delete_registered_model_tag("twice", record_key(2))
    (tmp_path / "other").symlink_to(tmp_path)
    elsewhere = Registry(f"sqlite:///{tmp_path}/other/mlflow.db")
    with pytest.raises(SignatureError, match=r"the record promotion\.0002 of model twice was removed"):
        elsewhere.promotions("twice").state()


def test_the_deletion_of_a_model_with_promotions_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Before the next run trains, and after somebody has made it again. If it was on purpose, a file is removed."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    models = Registry(f"sqlite:///{tmp_path}/mlflow.db", artifact_root=f"file://{tmp_path}/mlartifacts")
    _two(models, "again")
    models.client.delete_registered_model("again")
    with pytest.raises(SignatureError, match="model again was deleted in MLflow, with its promotions") as caught:
        models.champion("again")
    models.client.create_registered_model("again")
    with pytest.raises(SignatureError, match="model again was deleted and made again in MLflow"):
        models.champion("again")
    Path(str(caught.value).partition("or remove ")[2].partition(" if ")[0]).unlink()
    assert models.champion("again") is None
    _two(models, "again")
    assert [change.number for change in models.promotions("again").history()] == [1, 2]


def test_a_damaged_memory_of_promotions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It was cut off in a backup, so nobody can say whether MLflow has all promotions."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    models = Registry(f"sqlite:///{tmp_path}/mlflow.db", artifact_root=f"file://{tmp_path}/mlartifacts")
    _two(models, "cut")
    (memory,) = (path for path in (tmp_path / "services" / "promotions").iterdir() if not path.suffix)
    memory.write_text("")
    with pytest.raises(SignatureError, match=f"the record {memory} .* is damaged. Restore it from a backup, or remove"):
        models.promotions("cut").state()


def test_a_look_up_does_not_wait_for_what_it_cannot_write(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The home takes no file, another process has the lock of the model, and the alias was moved: logged once each."""
    key = key_file().read_text().strip()
    monkeypatch.setenv(KEY, key)
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    (tmp_path / "services").write_text("not a folder")
    client, name = place.models.client, place.name
    client.set_registered_model_alias(name, "champion", place.register(place.tags()).rpartition("/")[2])
    watched = WatchedVersion(place.models, f"models:/{name}@champion")
    try:
        with place.models._exclusive(name):
            for _ in range(2):
                assert watched(f"{name}/{place.version.version}") is None
    finally:
        client.set_registered_model_alias(name, "champion", str(place.version.version))
    failures = [line for line in caplog.messages if " was not " in line]
    assert len(failures) == 2
    assert failures[0].startswith(f"the description of {name} was not written: ")
    assert failures[1].startswith("the last promotion was not remembered: ")


def test_the_alias_previous_is_not_believed(registry: Registry):
    """It is the target of a rollback, by the records."""
    _two(registry, "before")
    registry.client.set_registered_model_alias("before", "previous", "3")
    assert registry.resolve("models:/before@previous").version == 1


def _unsigned_record(client: Any, model: str) -> None:
    client.set_registered_model_tag(model, record_key(3), json.dumps({"number": 3, "champion": 3}))


def _copied_from_another_number(client: Any, model: str) -> None:
    client.set_registered_model_tag(model, record_key(3), client.get_registered_model(model).tags[record_key(1)])


def _copied_from_another_model(client: Any, model: str) -> None:
    registry = Registry(client.tracking_uri, client=client)
    other = f"{model}-other"
    _two(registry, other)
    put_into_service(registry, other, 3)
    client.set_registered_model_tag(model, record_key(3), client.get_registered_model(other).tags[record_key(3)])


def _copied_from_another_registry(client: Any, model: str) -> None:
    """Of a model of the same name, with the same key, whose version 3 has the same content."""
    with tempfile.TemporaryDirectory() as folder:
        other = Registry(f"sqlite:///{folder}/mlflow.db", artifact_root=f"file://{folder}/artifacts")
        _two(other, model)
        put_into_service(other, model, 3)
        text = other.client.get_registered_model(model).tags[record_key(3)]
    client.set_registered_model_tag(model, record_key(3), text)


def _of_another_key(client: Any, model: str) -> None:
    change = Registry(client.tracking_uri, client=client).promotions(model).history()[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY, "attacker" * 4)
        write_record(client, model, change.model_copy(update={"number": 3, "champion": 3}))


@pytest.mark.parametrize(
    "plant",
    [
        _unsigned_record,
        _copied_from_another_number,
        _copied_from_another_model,
        _copied_from_another_registry,
        _of_another_key,
    ],
)
def test_a_planted_record_is_listed_and_not_believed(registry: Registry, plant: Callable[[Any, str], None]):
    """With the alias moved as well; the next change takes the next number, and the planted record stays as it is."""
    model = plant.__name__.strip("_")
    _two(registry, model)
    plant(registry.client, model)
    registry.client.set_registered_model_alias(model, "champion", "3")
    state = registry.promotions(model).state()
    assert (state.champion, state.unsigned, len(state.history)) == (2, (3,), 2)
    assert registry.resolve(f"models:/{model}@champion").version == 2
    assert registry.promotions(model).rollback(reason="refunds", by=ANNA).number == 4
    assert serving(registry, model) == (1, None)


@pytest.mark.parametrize("record", [1, 2])
@pytest.mark.parametrize("how", ["removed", "changed"])
def test_a_missing_record_is_an_error(registry: Registry, record: int, how: str):
    """Without the last one the champion before it would be back, and with a gap a rollback would go elsewhere.

    A changed record in the middle stays listed as not believed.
    """
    model = f"missing-{record}-{how}"
    _two(registry, model)
    if how == "removed":
        registry.client.delete_registered_model_tag(model, record_key(record))
    else:
        registry.client.set_registered_model_tag(model, record_key(record), "{}")
    registry.client.set_registered_model_alias(model, "champion", "1")
    if (record, how) == (1, "changed"):
        assert registry.promotions(model).state().unsigned == (1,)
        assert registry.resolve(f"models:/{model}@champion").version == 2
        return
    with pytest.raises(SignatureError, match=rf"the record promotion.000{record} of model {model} was removed or chan"):
        registry.resolve(f"models:/{model}@champion")


def test_a_promoted_number_with_other_content_is_not_served(registry: Registry):
    """A model that was deleted and made again gives its numbers out again: version 2 is not the one of before."""
    _two(registry, "again")
    last = registry.promotions("again").history()[-1]
    write_record(registry.client, "again", last.model_copy(update={"number": 3, "content": "ab" * 32}))
    with pytest.raises(SignatureError, match="models:/again/2 was replaced after its promotion"):
        registry.champion("again")


def test_a_champion_that_is_not_believed_is_replaced_with_force(registry: Registry):
    """Somebody has changed its tags: nothing is served, and the operator is not locked out."""
    _two(registry, "broken")
    registry.client.set_model_version_tag("broken", "2", "checkpoint_sha256", "mine")
    with pytest.raises(
        SignatureError, match=r"models:/broken/2 was changed after it was signed \(tag checkpoint_sha256\)"
    ):
        registry.champion("broken")
    version = put_version(registry, "broken", "d", against="b")
    with pytest.raises(PromotionRefused, match="the champion is not trusted"):
        registry.promotions("broken").promote(version, reason="gates", by=ANNA)
    put_into_service(registry, "broken", version)
    champion = registry.champion("broken")
    assert champion is not None
    assert champion.version == version


def test_a_rollback_to_a_version_that_is_not_believed_is_refused(registry: Registry):
    _two(registry, "back-to")
    registry.client.set_model_version_tag("back-to", "1", "verdict", "mine")
    for ask in (registry.promotions("back-to").rollback, registry.promotions("back-to").plan_rollback):
        with pytest.raises(SignatureError, match="models:/back-to/1 was changed"):
            ask(reason="refunds", by=ANNA)
    assert serving(registry, "back-to") == (2, 1)


def test_an_ancestor_that_is_not_believed_is_named_in_the_lineage(place: Place, tiny_folder: Path):
    """Its weights are those of another version's tags; what it was trained from is unknown."""
    name, client = "descended", place.models.client
    policy = load(tiny_folder)
    for key, start, trained in (("first", "base", "p1"), ("second", "p1", "p2")):
        made = make_provenance(policies=(start, trained), config={"policy": {"model": "m"}, "scenarios": {}})
        run_id = place.models.open_run("tests", "run", run_key=key, params={})
        tags = {"run_key": key, "policy": trained, "verdict": "promote", "checkpoint_sha256": trained}
        place.models.register(name, run_id, policy, tags=tags, provenance=made)
    client.set_model_version_tag(name, "1", "verdict", "mine")
    (parent,) = trace_lineage(place.models, place.models.resolve("models:/descended/2")).parents
    assert (parent.policy, parent.version) == ("p1", 1)
    assert parent.refusal is not None
    assert parent.refusal.startswith("models:/descended/1 was changed after it was signed (tag verdict)")


# --- registration


def test_a_logged_model_of_a_killed_registration_is_removed_on_retry(place: Place, tiny_folder: Path):
    """Killed between the files and the version: the retry of the same run leaves one logged model with files."""
    models, policy = place.models, load(tiny_folder)
    run_id = models.open_run("tests", "run", run_key="orphan", params={})
    tags = {"run_key": "orphan", "verdict": "promote", "checkpoint_uri": "store/x", "checkpoint_sha256": "ab"}

    class Cut(Dying):
        def create_model_version(self, *_: object, **__: object) -> None:
            raise Killed

    cut = Registry(models.tracking_uri, client=Cut(models.client, at=10**6, after=True))  # type: ignore[arg-type]
    with pytest.raises(Killed):
        cut.register("orphaned", run_id, policy, tags=tags, provenance=make_provenance())
    experiment = models.client.get_run(run_id).info.experiment_id
    (orphan,) = models.client.search_logged_models([experiment], f"source_run_id = '{run_id}'")
    files = Path(orphan.artifact_location.removeprefix("file://"))
    assert (files / "MLmodel").is_file()
    version = models.register("orphaned", run_id, policy, tags=tags, provenance=make_provenance())
    (kept,) = models.client.search_logged_models([experiment], f"source_run_id = '{run_id}'")
    assert version.source == f"models:/{kept.model_id}"
    assert kept.model_id != orphan.model_id
    assert not files.exists()
    models.verify(version)


# --- admission


def test_a_version_of_another_key_is_admitted_with_what_it_imports_shown(place: Place):
    """Its verdict is `admitted`, so that a promotion needs force; who, when and why are in the lineage."""
    address = _other_key(place)
    with examined(place.models, address) as admission:
        facts = admission.facts
        version = admit(place.models, admission, reason="trained by the other team", by=BEN)
    assert facts["now"].startswith("it was signed with another key")
    assert facts["weights"] == f"{place.version.checkpoint.uri}, sha256 {place.version.checkpoint.sha256}"
    assert {"imports from", "objects", "modules", "decision"} <= facts.keys()
    assert (version.tags["verdict"], version.checkpoint) == ("admitted", place.version.checkpoint)
    assert (trace_lineage(place.models, version).admitted or "").endswith("by ben@laptop: trained by the other team")
    with pytest.raises(PromotionRefused, match="has the verdict 'admitted'"):
        place.models.promote(place.name, version.version, reason="x", by=BEN)
    assert served_agent(place.models, version).files.folder.is_dir()
    with (
        pytest.raises(RegistryError, match="is signed with the key of this home already"),
        examined(place.models, address),
    ):
        pass


def test_a_model_of_mlflow_s_own_client_is_admitted_and_served_as_it_is(
    place: Place, tiny_folder: Path, tmp_path: Path, home: Path
):
    """`mlflow.transformers.log_model` and `register_model`: refused with the command, then served without additions."""
    policy = load(tiny_folder)
    with mlflow.start_run(experiment_id=place.models.experiment("own")) as run:
        info = mlflow.transformers.log_model(
            transformers_model={"model": policy.model, "tokenizer": policy.tokenizer}, name="own", task="llm/v1/chat",
            pip_requirements=[],
        )  # fmt: skip
    mlflow.register_model(info.model_uri, "own-model")
    address = "models:/own-model/1"
    for read in (lambda: WatchedVersion(place.models, address)(""), lambda: stored_checkpoint(address)):
        with pytest.raises(SignatureError, match=f"{address} is not signed, .*`grpo admit {address} --reason WHY`"):
            read()
    checkpoints = home / "artifacts" / "checkpoint"
    before = set(checkpoints.glob("*"))
    with examined(place.models, address) as admission:
        assert admission.facts["provenance"].startswith("none")
        assert set(checkpoints.glob("*")) == before
        version = admit(place.models, admission, reason="a first model", by=ANNA)
    assert version.run_id == run.info.run_id
    served = served_agent(place.models, version)
    assert load(served.files.folder).hash == policy.hash
    assert (served.system_prompt, served.tools) == ("", ())
    put_into_service(place.models, "own-model", 1)
    assert place.models.resolve("models:/own-model@champion") == version
    made = make_provenance(policies=(policy.hash, "p2"), config={"policy": {"model": address}, "scenarios": {}})
    tags = {"run_key": "child", "policy": "p2", "verdict": "promote", "checkpoint_sha256": "p2"}
    child = place.models.register("own-model", run.info.run_id, policy, tags=tags, provenance=made)
    (parent,) = trace_lineage(place.models, child).parents
    assert (parent.version, parent.policy, parent.refusal) == (1, policy.hash, None)


def test_damaged_files_and_planted_folders_are_not_admitted(place: Place):
    """The files are those of the tag, the checkpoint those of its digest, and code is not imported from artifacts."""

    def admitted(address: str) -> None:
        with examined(place.models, address):
            pass

    wrong = place.register({**place.tags(), SIGNATURE: "x", "model_sha256": "ab" * 32})
    with pytest.raises(ArtifactError, match="do not have the digest of its tag model_sha256"):
        admitted(wrong)
    weights = place.register({**place.tags(), SIGNATURE: "x", "checkpoint_sha256": "ab" * 32})
    with pytest.raises(GRPOError, match="ab" * 10):
        admitted(weights)
    with pytest.raises(GRPOError, match="Name the version by its number"):
        admitted(f"models:/{place.name}@candidate")


def test_checkpoints_of_versions_that_are_not_believed_are_not_kept(place: Place):
    """A digest in a tag is a file's name in the store: `../../x` would be written outside of it."""
    store = place.version.checkpoint.uri.rsplit("/", 2)[0]
    place.register({"checkpoint_uri": f"{store}/checkpoint/x", "checkpoint_sha256": "../../../planted"})
    kept: list[Artifact] = place.models.checkpoints(store)
    assert {artifact.sha256 for artifact in kept} == {place.version.checkpoint.sha256}


def test_the_registry_of_this_module_is_the_one_that_commands_use(place: Place):
    """Else the table would pass without having asked."""
    assert tracking_uri() == place.models.tracking_uri


def test_retraining_refuses_a_changed_report(place: Place, tmp_path: Path):
    """The held-out result in report.json is evidence for a retraining; the one that was signed is taken."""
    artifacts = ArtifactStore(place.version.checkpoint.uri.rsplit("/", 2)[0])
    signed = document(evaluation=evaluation()).model_dump_json()
    for name, text in {"as it was": signed, "changed": signed.replace('"kl_to_base":', '"kl_to_base":1')}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(text)
    place.models.log_files(place.version.run_id, [tmp_path / "as it was" / "report.json"])
    known = champion(place.models, artifacts, place.name)
    assert known is not None
    assert known.evaluation == Evaluation.model_validate(evaluation())
    place.models.log_files(place.version.run_id, [tmp_path / "changed" / "report.json"])
    with pytest.raises(SignatureError, match=r"report.json of run .* has another evaluation of .* that was signed"):
        champion(place.models, artifacts, place.name)
