"""API keys in a file: hashed, private, read again when they change."""

from __future__ import annotations

import hashlib
import hmac
import json
import multiprocessing
import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from grpo.config.serving import CallerLimits
from grpo.errors import ConfigError
from grpo.serving.access.keys import KeyStore


def _create(path: Path, name: str) -> None:
    KeyStore(path).create(name, ["chat"])


def test_a_secret_is_shown_once_and_its_hash_kept(tmp_path: Path):
    """The file has the sha256 alone, and is readable by its owner alone whatever the umask."""
    path = tmp_path / "keys.json"
    before = os.umask(0)
    try:
        secret = KeyStore(path).create("shop", ["chat", "feedback"], CallerLimits(parallel=2))
    finally:
        os.umask(before)
    text = path.read_text()
    assert secret.startswith("sk-grpo-")
    assert len(secret) == len("sk-grpo-") + 43  # 256 bits in base64
    assert secret not in text
    assert hashlib.sha256(secret.encode()).hexdigest() in text
    assert path.stat().st_mode & 0o777 == 0o600
    (record,) = json.loads(text)["keys"]
    assert datetime.fromisoformat(record["created"]).utcoffset() == timedelta(0)


def test_a_caller_has_the_scopes_and_limits_of_its_key(tmp_path: Path):
    """Its identity is the hash of the key; another secret has none."""
    store = KeyStore(tmp_path / "keys.json")
    store.create("other", ["admin"])
    secret = store.create("shop", ["chat", "feedback"], CallerLimits(parallel=2))
    caller = store.caller(secret)
    assert caller is not None
    assert (caller.name, caller.scopes, caller.limits) == ("shop", {"chat", "feedback"}, CallerLimits(parallel=2))
    assert caller.key_hash == hashlib.sha256(secret.encode()).hexdigest()
    for wrong in ("", secret[:-1], secret + "x", secret.upper(), "\udcff", "ü" * 5000):
        assert store.caller(wrong) is None


def test_every_key_is_compared_in_constant_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By `hmac.compare_digest` of hashes, the match first, last or missing."""
    store = KeyStore(tmp_path / "keys.json")
    secrets = [store.create(name, ["chat"]) for name in ("a", "b", "c")]
    hashes = sorted(key.sha256 for key in store.list())
    compared: list[str] = []
    real = hmac.compare_digest

    def compare(known: str, presented: str) -> bool:
        compared.append(known)
        assert len(presented) == 64
        return real(known, presented)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for secret in (*secrets, "sk-grpo-wrong", secrets[0][:-1]):
        compared.clear()
        store.caller(secret)
        assert sorted(compared) == hashes


def test_a_running_store_follows_the_file(tmp_path: Path):
    """A key of another process is known at once, a revoked one refused; a removed file leaves none."""
    path = tmp_path / "keys.json"
    running, command = KeyStore(path), KeyStore(path)
    secret = command.create("shop", ["chat"])
    assert running.caller(secret) is not None
    assert command.revoke("shop").name == "shop"
    assert running.caller(secret) is None
    again = command.create("shop", ["chat"])
    assert running.caller(again) is not None
    path.unlink()
    assert running.caller(again) is None


def test_processes_that_write_at_once_lose_no_key(tmp_path: Path):
    """The file is read and written under one lock."""
    path = tmp_path / "keys.json"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_create, args=(path, f"key-{k}")) for k in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [key.name for key in KeyStore(path).list()] == [f"key-{k}" for k in range(4)]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int):
    """Also when its mode changes while the server runs."""
    path = tmp_path / "keys.json"
    store = KeyStore(path)
    secret = store.create("shop", ["chat"])
    assert store.caller(secret) is not None
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:04o}, others can read it: chmod 600"):
        store.caller(secret)
    with pytest.raises(ConfigError, match="chmod 600"):
        KeyStore(path)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"keys": [{"name": "shop"}]}',
        b'{"keys": [], "more": 1}',
        json.dumps(
            {"keys": [{"name": "a", "sha256": "0" * 64, "scopes": ["root"], "created": "2026-01-01T00:00:00Z"}]}
        ).encode(),
        json.dumps(
            {"keys": [{"name": "a", "sha256": "0" * 64, "scopes": ["chat"], "created": "2026-01-01T00:00:00Z"}] * 2}
        ).encode(),
    ],
)
def test_a_damaged_file_is_an_error_and_admits_nothing(tmp_path: Path, damage: bytes):
    """The keys that were read before are not kept: one of them may be revoked."""
    path = tmp_path / "keys.json"
    store = KeyStore(path)
    secret = store.create("shop", ["chat"])
    path.write_bytes(damage)
    for _ in range(2):
        with pytest.raises(ConfigError, match="is damaged"):
            store.caller(secret)


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "../x", "-x", "ü", "a\n"])
def test_a_name_is_a_plain_word(tmp_path: Path, name: str):
    """It stands in logs and terminals."""
    with pytest.raises(ConfigError, match="name"):
        KeyStore(tmp_path / "keys.json").create(name, ["chat"])


def test_a_wrong_request_is_refused_with_its_remedy(tmp_path: Path):
    """A taken name, an unknown one, an unknown scope, none."""
    store = KeyStore(tmp_path / "keys.json")
    with pytest.raises(ConfigError, match=r"key 'shop' does not exist in .*\. There are: none"):
        store.revoke("shop")
    store.create("shop", ["chat"])
    with pytest.raises(ConfigError, match=r"key 'shop' exists .*\. Choose another name, or revoke it first"):
        store.create("shop", ["chat"])
    with pytest.raises(ConfigError, match="'chat', 'feedback', 'outcomes', 'log', 'metrics', 'rollout' or 'admin'"):
        store.create("other", ["root"])
    with pytest.raises(ConfigError, match="scopes"):
        store.create("other", [])
    assert [key.name for key in store.list()] == ["shop"]
