"""Artifacts in an object store, against a real S3 server on loopback."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import boto3
import fsspec
import numpy as np
import pytest
import s3fs
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.numpy import save_file

from grpo.artifacts import Artifact, ArtifactStore, local_path
from grpo.config.pipeline import PipelineConfig
from grpo.config.scenarios import FileSource
from grpo.errors import ArtifactError, ConfigError, StorageError
from grpo.policy.weights.sources import model_files
from grpo.scenario import Scenario
from grpo.scenarios.sources import content_hash, read_records
from grpo.scenarios.table import write_scenarios
from grpo.storage.digests import MANIFEST
from grpo.storage.fetched import user_temp_folder
from grpo.storage.objects import ObjectFolder, open_uri
from tests.object_store import CountingFileSystem, counting_store, object_store

STORE = "s3://grpo/artifacts"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as environment, object_store(environment) as url:
        yield url


@pytest.fixture
def store(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    """An empty store, and a machine that has fetched nothing."""
    bucket = boto3.resource("s3").Bucket("grpo")
    bucket.objects.all().delete()
    _another_machine(tmp_path / "here", monkeypatch)
    return ArtifactStore(STORE)


def _another_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    """The same store, seen from where nothing was fetched."""
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return ArtifactStore(STORE)


def _text(store: ArtifactStore, text: str) -> Artifact:
    with store.new_file("note", ".txt") as new:
        new.path.write_text(text)
    return new.artifact


def _pair(store: ArtifactStore) -> Artifact:
    with store.new_folder("pair") as new:
        (new.path / "a").write_text("1")
        (new.path / "deep").mkdir()
        (new.path / "deep" / "b").write_text("2")
    return new.artifact


def _keys() -> set[str]:
    return {item.key for item in boto3.resource("s3").Bucket("grpo").objects.all()}


def _key(artifact: Artifact, file: str = "") -> str:
    return f"{artifact.uri.removeprefix('s3://grpo/')}{file and '/' + file}"


def test_another_machine_reads_what_was_stored(store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file and a folder with all that lies in it, by address and digest alone."""
    note, pair = _text(store, "x"), _pair(store)
    there = _another_machine(tmp_path / "there", monkeypatch)
    assert there.path(note).read_text() == "x"
    assert there.path(note).suffix == ".txt"
    assert (there.path(pair) / "deep" / "b").read_text() == "2"
    assert pair.uri.startswith("s3://grpo/artifacts/pair/")


def test_unused_copies_are_removed_after_a_week(store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of two copies of eight days the one that was just read stays; the other is fetched again when it is wanted."""
    folder, note = _pair(store), _text(store, "kept")
    machine = _another_machine(tmp_path / "there", monkeypatch)
    copies = [machine.path(artifact) for artifact in (folder, note)]
    for copy in copies:
        os.utime(copy.with_name(f"{copy.name}.etags"), times=(time.time() - 8 * 86400,) * 2)
    machine.path(note)
    machine.path(_text(machine, "new"))
    assert [copy.exists() for copy in copies] == [False, True]
    assert machine.path(folder).is_dir()


def test_an_artifact_that_a_config_names_is_read_on_any_machine(
    store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A table and a model: the name holds no path of the machine that wrote it, and is the same on each."""
    scenarios = [Scenario(id="s1", user_responses=("Hello.",))]
    with store.new_file("mixture", ".parquet") as new_table:
        write_scenarios(new_table.path, scenarios)
    with store.new_folder("model") as new_model:
        (new_model.path / "config.json").write_text('{"model_type": "llama"}')
        save_file({"x": np.zeros(1)}, new_model.path / "model.safetensors")
    table, model = store.address(new_table.artifact), store.address(new_model.artifact)
    _another_machine(tmp_path / "there", monkeypatch)
    source = FileSource(kind="parquet", path=table)
    assert (table + model).count("s3://grpo/artifacts/") == 2
    assert [one.data["id"] for one in read_records(source) if one.data] == ["s1"]
    assert content_hash([source]) == content_hash([FileSource(kind="parquet", path=str(local_path(table)))])
    assert (model_files(model).folder / "config.json").read_text() == '{"model_type": "llama"}'


def test_an_artifact_that_a_config_names_is_held_to_its_digest(store: ArtifactStore):
    """Another digest is damage; without one nothing is read."""
    note = _text(store, "x")
    with pytest.raises(ArtifactError, match="damaged"):
        local_path(f"{note.uri}#{'0' * 64}")
    with pytest.raises(ConfigError, match="sha256"):
        local_path(note.uri)


def test_two_writers_of_the_same_content_make_one_artifact(store: ArtifactStore):
    """Both publish one address, which is readable."""
    result: list[Artifact] = []
    writers = [threading.Thread(target=lambda: result.append(_pair(ArtifactStore(STORE)))) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(result) == 4
    assert len(set(result)) == 1
    assert len(_keys()) == 3
    store.verify(result[0])


@pytest.mark.parametrize("file", ["", "a", "deep/b", MANIFEST])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["where it was made", "elsewhere"])
def test_a_changed_object_is_refused(
    store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, elsewhere: bool
):
    """One other byte in the bucket is damage, whether or not this machine holds a good copy; no part of it is kept."""
    artifact = _pair(store) if file else _text(store, "x")
    store.verify(artifact)
    boto3.client("s3").put_object(Bucket="grpo", Key=_key(artifact, file), Body=b"9")
    reader = _another_machine(tmp_path / "there", monkeypatch) if elsewhere else store
    with pytest.raises(ArtifactError, match="damaged") as caught:
        reader.path(artifact)
    assert artifact.uri in str(caught.value)
    assert not elsewhere or not list((user_temp_folder() / "fetched").iterdir())


@pytest.mark.parametrize("file", ["a", MANIFEST])
def test_a_removed_object_is_missing(store: ArtifactStore, file: str):
    """A folder without its manifest is not there, and one without a file is not whole."""
    artifact = _pair(store)
    boto3.client("s3").delete_object(Bucket="grpo", Key=_key(artifact, file))
    with pytest.raises(ArtifactError, match=r"pair s3://grpo/.* is missing"):
        ArtifactStore(STORE).path(artifact)


def test_an_artifact_that_was_never_stored_is_missing(store: ArtifactStore):
    """Nothing at the address: the error names it."""
    with pytest.raises(ArtifactError, match=r"note s3://grpo/artifacts/note/0.txt is missing"):
        store.path(Artifact(uri=f"{STORE}/note/0.txt", sha256="0", kind="note"))


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return ArtifactStore(counting_store())


def _sent() -> list[str]:
    return [name.rpartition("/")[2] for name in CountingFileSystem.sent]


def _version(store: ArtifactStore, weights: str, *, like: Artifact | None = None) -> Artifact:
    with store.new_folder("checkpoint", like=like) as new:
        (new.path / "tokenizer.json").write_text("words")
        (new.path / "weights").write_text(weights)
    return new.artifact


def test_files_that_an_earlier_folder_has_are_copied_by_the_store(counting: ArtifactStore):
    """Weights and manifest of the second version are sent, and its tokenizer is not."""
    first = _version(counting, "1")
    CountingFileSystem.sent.clear()
    second = _version(counting, "2", like=first)
    assert _sent() == ["weights", MANIFEST]
    assert [name.rpartition("/")[2] for name in CountingFileSystem.copied] == ["tokenizer.json"]
    assert (counting.path(second) / "tokenizer.json").read_text() == "words"
    assert counting.path(first) != counting.path(second)


def test_a_store_that_cannot_copy_gets_the_files_again(counting: ArtifactStore, monkeypatch: pytest.MonkeyPatch):
    """E.g. over SFTP."""

    def cannot(*given: object, **options: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(CountingFileSystem, "cp_file", cannot)
    first = _version(counting, "1")
    CountingFileSystem.sent.clear()
    second = _version(counting, "2", like=first)
    assert _sent() == ["tokenizer.json", "weights", MANIFEST]
    counting.verify(second)


def test_s3_copies_a_file_of_an_earlier_folder(store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another machine reads it, and it is still there when the first folder is removed."""
    first = _version(store, "1")
    second = _version(store, "2", like=first)
    store.remove(first)
    folder = _another_machine(tmp_path / "there", monkeypatch).path(second)
    assert [(folder / name).read_text() for name in ("tokenizer.json", "weights")] == ["words", "2"]


def test_files_of_a_folder_that_was_changed_are_sent(counting: ArtifactStore):
    """A changed object would damage the copy as well."""
    first = _version(counting, "1")
    CountingFileSystem(use_listings_cache=False).pipe_file(f"{first.uri}/tokenizer.json", b"other")
    CountingFileSystem.sent.clear()
    second = _version(counting, "2", like=first)
    assert _sent() == ["tokenizer.json", "weights", MANIFEST]
    assert not CountingFileSystem.copied
    counting.verify(second)


def test_files_of_a_folder_that_was_removed_are_sent(counting: ArtifactStore):
    """Retention may have removed it."""
    first = _version(counting, "1")
    counting.remove(first)
    assert (counting.path(_version(counting, "2", like=first)) / "tokenizer.json").read_text() == "words"
    assert not CountingFileSystem.copied


def test_content_that_is_stored_already_is_not_sent(counting: ArtifactStore):
    """A file and a folder."""
    before = _text(counting, "x"), _version(counting, "1")
    CountingFileSystem.sent.clear()
    assert (_text(counting, "x"), _version(counting, "1")) == before
    assert not CountingFileSystem.sent


def test_damage_is_mended_by_the_next_writer(store: ArtifactStore):
    """Storing the same content again writes every object again."""
    artifact = _pair(store)
    boto3.client("s3").put_object(Bucket="grpo", Key=_key(artifact, "a"), Body=b"9")
    assert _pair(store) == artifact
    assert (store.path(artifact) / "a").read_text() == "1"


def test_a_damaged_copy_on_this_machine_is_refused(store: ArtifactStore):
    """Copies are verified at every read, too."""
    artifact = _pair(store)
    copy = store.path(artifact) / "a"
    copy.write_text("9")
    os.utime(copy, (1, 2_000_000_000))
    with pytest.raises(ArtifactError, match="damaged"):
        store.path(artifact)


def test_a_manifest_that_names_files_outside_is_not_followed(store: ArtifactStore):
    """Write access to the bucket does not give write access to the machines that read it."""
    body = json.dumps({"../../../escaped": "0"}).encode()
    digest = hashlib.sha256(body).hexdigest()
    artifact = Artifact(uri=f"{STORE}/pair/evil", sha256=digest, kind="pair")
    for key, content in ((MANIFEST, body), ("a", b"x")):
        boto3.client("s3").put_object(Bucket="grpo", Key=_key(artifact, key), Body=content)
    with pytest.raises(ArtifactError, match="names files outside"):
        store.path(artifact)


class DyingFileSystem(MemoryFileSystem):
    """An object store whose writer dies after so many uploads."""

    protocol = "dying"
    lives: ClassVar[int] = 0
    uploaded: ClassVar[list[str]] = []

    def put_file(self, lpath: Any, rpath: Any, **options: Any) -> None:
        """Upload while the writer lives."""
        if type(self).lives == 0:
            raise KeyboardInterrupt
        type(self).lives -= 1
        self.uploaded.append(Path(rpath).name)
        super().put_file(lpath, rpath, **options)


def test_an_interrupted_upload_is_never_read_as_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Killed after each object in turn: without its manifest the folder is missing; and the manifest comes last."""
    fsspec.register_implementation("dying", DyingFileSystem, clobber=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    whole = _pair(ArtifactStore("memory://whole"))
    for lives in range(3):
        store = ArtifactStore(f"dying://bucket{lives}")
        DyingFileSystem.lives = lives
        with pytest.raises(KeyboardInterrupt):
            _pair(store)
        part = whole.model_copy(update={"uri": whole.uri.replace("memory:///whole", f"dying://bucket{lives}")})
        with pytest.raises(ArtifactError, match="missing"):
            store.path(part)
    DyingFileSystem.lives, DyingFileSystem.uploaded = 3, []
    store = ArtifactStore("dying://last")
    store.verify(_pair(store))
    assert DyingFileSystem.uploaded == ["a", "b", MANIFEST]


class _CutReplies(BaseHTTPRequestHandler):
    """Replies that end before their announced length."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "586")
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(b"14 bytes of it")
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def test_a_reply_that_is_cut_can_be_tried_again(monkeypatch: pytest.MonkeyPatch):
    """A proxy or a store that ends in the midst of an object is as good as away: a `ConnectionError`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _CutReplies) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "a-key-of-this-test")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
        s3fs.S3FileSystem.clear_instance_cache()
        try:
            with pytest.raises(ConnectionError, match="cannot be reached") as caught:
                ObjectFolder(*open_uri(STORE)).read("a")
            assert type(caught.value.__cause__).__name__ == "ClientPayloadError"
        finally:
            s3fs.S3FileSystem.clear_instance_cache()
            server.shutdown()


def test_a_store_that_does_not_answer_can_be_tried_again(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """A `ConnectionError`, which stages retry, with the address and what to look at; no credentials in it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        away = ArtifactStore(STORE)
        for call in (lambda: _text(away, "x"), lambda: away.path(Artifact(uri=f"{STORE}/a", sha256="0", kind="a"))):
            with pytest.raises(ConnectionError, match=r"s3://grpo/artifacts at 127.0.0.1 cannot be reached") as caught:
                call()
            assert "AWS_ENDPOINT_URL" in str(caught.value)
            assert "testing-" not in str(caught.value)
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


def test_a_missing_bucket_names_the_remedy(store: ArtifactStore):
    """Writing names the remedy; reading reports a missing artifact."""
    with pytest.raises(StorageError, match="Create the bucket"):
        _text(ArtifactStore("s3://no-such-bucket/artifacts"), "x")


def test_refused_credentials_name_the_remedy(store: ArtifactStore, server: str, monkeypatch: pytest.MonkeyPatch):
    """A server that checks: reading and writing are `StorageError`s, since a second try is refused as well."""

    def after(requests: str) -> None:
        address, plain = f"{server}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(address, data=requests.encode(), headers=plain)).close()

    artifact = _text(store, "x")
    after("0")
    try:
        with pytest.raises(StorageError, match="Check the credentials"):
            _text(store, "y")
        with pytest.raises(StorageError, match="Check the credentials"):
            store.path(artifact)
    finally:
        after("1000000")


def test_missing_credentials_are_named(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Nothing in the environment: the variables to set."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        with pytest.raises(StorageError, match="Set AWS_ACCESS_KEY_ID"):
            _text(ArtifactStore(STORE), "x")
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("uri", ["s3://id:secret@grpo/artifacts", "s3://grpo/artifacts?secret=s3cret"])
def test_credentials_in_the_address_are_refused_and_not_repeated(uri: str, desk_config: dict[str, object]):
    """By the store and by the config, before anything is written down."""
    for use in (ArtifactStore, lambda store: PipelineConfig.model_validate({**desk_config, "store": store})):
        with pytest.raises(ConfigError, match="set them in the environment") as caught:
            use(uri)
        assert "secret@" not in str(caught.value)
        assert "s3cret" not in str(caught.value)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    """Without s3fs: what to install."""
    loaded = importlib.import_module("fsspec.registry")._registry
    monkeypatch.delitem(loaded, "s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ConfigError, match=r"pip install 'grpo-agent-framework\[s3\]'"):
        ArtifactStore(STORE)


def test_a_folder_that_others_can_read_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Copies of artifacts are in a private folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    user_temp_folder().chmod(0o777)
    with pytest.raises(StorageError, match="not a folder of only this user"):
        _pair(ArtifactStore("memory://shared"))
