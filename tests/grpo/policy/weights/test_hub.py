"""Models on a hub: pinned, fetched, resumed, verified, refused, and offline."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import file_download

from grpo import progress
from grpo.errors import ArtifactError, PolicyError, StorageError
from grpo.policy.weights.hub import fetch, hub_model, plan
from grpo.policy.weights.sources import model_source
from grpo.storage.hub import OFFLINE, HubRepository, pin
from tests.clock import patch_time
from tests.hub_server import Hub, HubRepo, hub_server, model_files
from tests.places import DESK_MODEL

NAME = "acme/desk"
TOKEN = "hf_ThisIsATokenOfNobodyAtAll"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with nothing on it, and an empty cache."""
    with hub_server(monkeypatch, tmp_path / "cache") as running:
        yield running


@pytest.fixture
def desk(server: Hub) -> HubRepo:
    """The shipped model on the hub, beside files that are not read."""
    others = {"pytorch_model.bin": b"\x80" * 5000, "modeling_desk.py": b"import os", "onnx/config.json": b"{}"}
    return server.add(NAME, {**model_files(DESK_MODEL), **others})


def _fetch(address: str = NAME) -> Path:
    model = hub_model(address)
    assert model is not None
    return fetch(pin(model))


def test_a_model_is_fetched_without_files_that_run_code(server: Hub, desk: HubRepo):
    """Config, tokenizer, template and safetensors, bit for bit; progress ends at all of its megabytes."""
    reports: list[tuple[str, int, int]] = []
    with progress.observed(lambda stage, done, total, numbers: reports.append((stage, done, total))):
        folder = _fetch()
    assert folder.name == desk.branches["main"]
    expected = {name for name in model_files(DESK_MODEL) if name != "README.md"}
    assert {path.name for path in folder.iterdir()} == expected == set(server.fetched())
    for name in expected:
        assert (folder / name).read_bytes() == (DESK_MODEL / name).read_bytes()
    assert reports[-1][0] == "fetch"
    assert reports[-1][1] == reports[-1][2] == 5


def test_a_second_fetch_of_the_commit_asks_nothing(server: Hub, desk: HubRepo):
    """The files and their list are in the cache."""
    model = pin(HubRepository(repo=NAME))
    first = fetch(model)
    server.requests.clear()
    assert fetch(model) == first
    assert pin(model) == model
    assert server.requests == []


def test_a_pinned_model_stays_while_main_moves(server: Hub, desk: HubRepo):
    """The old commit by its hash, the new one by the branch, and a tag by its name."""
    before = pin(HubRepository(repo=NAME))
    desk.branches["v1.0"] = str(before.revision)
    files = model_files(DESK_MODEL)
    config = json.loads(files["config.json"]) | {"rms_norm_eps": 1e-3}
    moved = desk.commit({**files, "config.json": json.dumps(config).encode()})
    after = pin(HubRepository(repo=NAME))
    assert after.revision == moved != before.revision
    assert (fetch(before) / "config.json").read_bytes() == files["config.json"]
    assert json.loads((fetch(after) / "config.json").read_bytes())["rms_norm_eps"] == 1e-3
    assert pin(HubRepository(repo=NAME, revision="v1.0")) == before
    with pytest.raises(PolicyError, match=f"no revision {NAME}@v2 at {server.url}"):
        pin(HubRepository(repo=NAME, revision="v2"))


def test_a_plan_fetches_no_weights(server: Hub, desk: HubRepo):
    """The size of all files that are read, and the weights as what is missing; nothing is, once they are fetched."""
    model = pin(HubRepository(repo=NAME))
    sizes = {path.name: path.stat().st_size for path in DESK_MODEL.iterdir() if path.name != "README.md"}
    planned = plan(model)
    assert (planned.files, planned.size) == (len(sizes), sum(sizes.values()))
    assert planned.missing == sizes["model.safetensors"]
    assert not [name for name in server.fetched() if name.endswith(".safetensors")]
    fetch(model)
    assert plan(model).missing == 0


def test_quantized_weights_are_refused_before_they_are_fetched(server: Hub):
    """By the config, of some kilobytes."""
    files = model_files(DESK_MODEL)
    config = json.loads(files["config.json"]) | {"quantization_config": {"quant_method": "gptq"}}
    server.add(NAME, {**files, "config.json": json.dumps(config).encode()})
    with pytest.raises(PolicyError, match=r"are quantized \(gptq\), which cannot be trained"):
        model_source(NAME).folder()
    assert not [name for name in server.fetched() if name.endswith(".safetensors")]


def test_a_cut_download_is_resumed(server: Hub, desk: HubRepo):
    """The rest is asked for by its range, and the file is whole."""
    desk.cuts["model.safetensors"] = [1_000_000]
    folder = _fetch()
    assert server.fetched().count("model.safetensors") == 2
    assert (folder / "model.safetensors").read_bytes() == (DESK_MODEL / "model.safetensors").read_bytes()


def test_a_download_that_breaks_off_for_good_leaves_no_part(
    server: Hub, desk: HubRepo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The error says what to do, and the next fetch is whole."""
    patch_time(monkeypatch, file_download, sleep=lambda seconds: None)
    desk.cuts["model.safetensors"] = [1_000_000, 0, 0, 0, 0, 0, 0, 0]
    with pytest.raises(ConnectionError, match=r"breaks off\. Run it again, or set HF_HUB_OFFLINE"):
        _fetch()
    assert not list((tmp_path / "cache").rglob("*.incomplete"))
    assert not list((tmp_path / "cache").rglob("model.safetensors"))
    desk.cuts.clear()
    assert (_fetch() / "model.safetensors").read_bytes() == (DESK_MODEL / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_changed_file_is_refused_and_removed(server: Hub, desk: HubRepo, name: str):
    """By the sha256 of a large file and git's digest of a small one, though the size is that of the list."""
    content = (DESK_MODEL / name).read_bytes()
    desk.changed[name] = content[:-1] + bytes([content[-1] ^ 1])
    with pytest.raises(ArtifactError, match=rf"{name} of {NAME}@\w+ is not the hub's: its digest is \w+"):
        _fetch()
    del desk.changed[name]
    assert (_fetch() / name).read_bytes() == content


def test_a_file_that_was_damaged_in_the_cache_is_fetched_again(server: Hub, desk: HubRepo):
    """Refused once, whole after that."""
    weights = _fetch() / "model.safetensors"
    weights.resolve().write_bytes(b"damaged")
    with pytest.raises(ArtifactError, match="It was removed from the cache"):
        _fetch()
    assert (_fetch() / "model.safetensors").stat().st_size > 5_000_000


def test_a_file_of_another_size_is_refused(server: Hub, desk: HubRepo):
    """The server sends less than the list of files says."""
    desk.changed["model.safetensors"] = b"short"
    with pytest.raises((ArtifactError, ConnectionError), match=r"is not the hub's|shorter or longer"):
        _fetch()


@pytest.mark.parametrize("lists_to_all", [True, False])
def test_a_gated_model_names_its_page_and_the_variable(
    server: Hub, desk: HubRepo, monkeypatch: pytest.MonkeyPatch, lists_to_all: bool
):
    """With a token that has access it is fetched; the token is in no message."""
    desk.refusal, desk.token, desk.lists_to_all = (403, "GatedRepo"), TOKEN, lists_to_all
    for given, state in ((None, "is not set"), ("hf_AnotherTokenWithoutAccess", "is set")):
        if given is not None:
            monkeypatch.setenv("HF_TOKEN", given)
        with pytest.raises(
            PolicyError, match=f"is gated: accept its terms at {server.url}/{NAME}, and set HF_TOKEN .*HF_TOKEN {state}"
        ) as caught:
            _fetch()
        assert "hf_" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert (_fetch() / "model.safetensors").is_file()


def test_a_private_or_missing_model_is_named_with_both_remedies(server: Hub, monkeypatch: pytest.MonkeyPatch):
    """Without a token the hub does not distinguish them; with a wrong one it refuses the token."""
    with pytest.raises(PolicyError, match=f"no folder acme/none here, and no model acme/none at {server.url}"):
        _fetch("acme/none")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(PolicyError, match=r"answers 401 \(HF_TOKEN is set\)\. Set HF_TOKEN to a valid token"):
        _fetch("acme/none")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"config.json": b"{}", "pytorch_model.bin": b"x"}, r"only pytorch_model.bin, which runs code when it is read"),
        ({"config.json": b"{}", "model.Q4_0.gguf": b"x"}, r"only GGUF\. Fetch one of them, for example model.Q4_0"),
        ({"config.json": b"{}", "README.md": b"x"}, r"has no safetensors weights, only README.md, config.json"),
        ({"README.md": b"x"}, r"is not a model: it has no config.json\. Its files are README.md"),
        ({"adapter_config.json": b"{}", "adapter_model.bin": b"x"}, r"only adapter_model.bin, which runs code"),
    ],
)
def test_a_model_without_safetensors_is_refused(server: Hub, files: dict[str, bytes], reason: str):
    """With what it has instead, and none of it is fetched."""
    server.add(NAME, files)
    with pytest.raises(PolicyError, match=reason):
        plan(pin(HubRepository(repo=NAME)))
    assert not {name for name in server.fetched() if not name.endswith(".json")}


def _index(shards: object) -> dict[str, bytes]:
    return {"config.json": b"{}", "model.safetensors.index.json": json.dumps(shards).encode()}


def test_the_shards_of_an_index_are_fetched_and_no_other(server: Hub):
    """Two shards of two files; a third weight file beside them is left."""
    index = _index({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}})
    weights = {f"{name}.safetensors": name.encode() for name in ("model-1", "model-2", "consolidated")}
    server.add(NAME, {**index, **weights})
    folder = _fetch()
    assert sorted(path.name for path in folder.glob("*.safetensors")) == ["model-1.safetensors", "model-2.safetensors"]


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({"weight_map": {"a": "../../../secret.safetensors"}}, "which is not one of its safetensors files"),
        ({"weight_map": {"a": "pytorch_model.bin"}}, "which is not one of its safetensors files"),
        ({"weight_map": {"a": "absent.safetensors"}}, "which is not one of its safetensors files"),
        ({"weight_map": {"a": ["b"]}}, "is not an index of weights"),
        ({"weights": {}}, "is not an index of weights"),
        ([], "is not an index of weights"),
    ],
)
def test_an_index_that_names_other_files_is_refused(server: Hub, index: object, reason: str):
    """Also where the file exists."""
    server.add(NAME, {**_index(index), "pytorch_model.bin": b"x"})
    with pytest.raises(PolicyError, match=reason):
        _fetch()
    assert "pytorch_model.bin" not in server.fetched()


def test_a_huge_index_is_refused_before_it_is_fetched(server: Hub):
    """By the size that the hub lists: 3 GB, of which 128 MiB are read at most."""
    repo = server.add(NAME, _index({"weight_map": {}}))
    repo.sizes["model.safetensors.index.json"] = 3_000_000_000
    with pytest.raises(PolicyError, match=r"index.json has 3,000,000,000 bytes, and at most 134,217,728 are read"):
        _fetch()
    assert server.fetched() == []


def test_weights_larger_than_the_disk_are_refused_before_they_are_fetched(server: Hub, desk: HubRepo):
    """10^18 bytes."""
    desk.sizes["model.safetensors"] = 10**18
    with pytest.raises(StorageError, match=r"takes 1,000,000,000,000,000,000 bytes in .* set HF_HOME to another disk"):
        _fetch()


def test_offline_a_model_comes_from_the_cache(server: Hub, desk: HubRepo, monkeypatch: pytest.MonkeyPatch):
    """With main at the commit that was fetched, and without a request; one that was not fetched is refused."""
    folder = _fetch()
    server.requests.clear()
    monkeypatch.setenv(OFFLINE, "1")
    assert _fetch() == _fetch(f"{NAME}@main") == _fetch(f"{NAME}@{folder.name}") == folder
    for address in ("acme/none", f"{NAME}@v1", f"acme/none@{'0' * 40}"):
        with pytest.raises(PolicyError, match=f"{address} is not in the cache .*HF_HUB_OFFLINE is set.*Unset it"):
            _fetch(address)
    assert server.requests == []


def test_offline_a_planned_model_lacks_its_weights(server: Hub, desk: HubRepo, monkeypatch: pytest.MonkeyPatch):
    """Half a model is not taken for one."""
    plan(pin(HubRepository(repo=NAME)))
    monkeypatch.setenv(OFFLINE, "1")
    with pytest.raises(PolicyError, match=rf"model.safetensors of {NAME}@\w+ is not in the cache"):
        _fetch(f"{NAME}@{desk.branches['main']}")


@pytest.mark.parametrize("status", [500, 503])
def test_a_failing_hub_is_a_transient_error(server: Hub, desk: HubRepo, status: int):
    """A retry may fix it; the error names the cache as the other way."""
    server.status = status
    with pytest.raises(ConnectionError, match=rf"{server.url} answers {status}\. Run it again, or set HF_HUB_OFFLINE"):
        pin(HubRepository(repo=NAME))


@pytest.mark.parametrize("answer", [b"<html>Welcome to the hotel</html>", b"[]", b'{"id": "acme/desk", "sha": "../x"}'])
def test_another_server_is_not_taken_for_a_hub(server: Hub, desk: HubRepo, answer: bytes):
    """Such as a login page on the way."""
    server.answer = answer
    with pytest.raises(PolicyError, match="Check HF_ENDPOINT"):
        pin(HubRepository(repo=NAME))


def test_a_cache_without_room_names_its_variable(server: Hub, desk: HubRepo, monkeypatch: pytest.MonkeyPatch):
    """Nothing can be written below /proc, where no byte is free."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "/proc/cache")
    with pytest.raises(StorageError, match=r"takes .* bytes in /proc/cache, where 0 are free. .*set HF_HOME"):
        _fetch()


def test_a_hub_that_does_not_answer_is_given_up(server: Hub, monkeypatch: pytest.MonkeyPatch):
    """It takes the connection, and sends nothing."""
    monkeypatch.setattr("grpo.storage.hub._ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ConnectionError, match="cannot be reached or breaks off"):
            pin(HubRepository(repo=NAME))


def test_a_hub_that_is_not_there_is_a_transient_error(server: Hub, monkeypatch: pytest.MonkeyPatch):
    """Nothing listens on the port."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConnectionError, match=r"127.0.0.1:9 cannot be reached"):
        pin(HubRepository(repo=NAME))


def test_packages_stay_offline(server: Hub, desk: HubRepo, monkeypatch: pytest.MonkeyPatch):
    """The mode of huggingface_hub is the same after a fetch, and after one that failed."""
    from huggingface_hub import is_offline_mode

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    _fetch()
    assert is_offline_mode()
    with pytest.raises(PolicyError):
        _fetch("acme/none")
    assert is_offline_mode()


def test_an_existing_folder_wins_over_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And only `org/name`, with or without a revision, is an id."""
    monkeypatch.chdir(tmp_path)
    assert hub_model(NAME) == HubRepository(repo=NAME)
    assert hub_model(f"{NAME}@refs/pr/1") == HubRepository(repo=NAME, revision="refs/pr/1")
    for address in ("desk", "a/b/c", "./acme/desk", "/acme/desk", "../desk", "acme/..", "acme/desk@../../x", "acme/"):
        assert hub_model(address) is None, address
    (tmp_path / NAME).mkdir(parents=True)
    assert hub_model(NAME) is None
