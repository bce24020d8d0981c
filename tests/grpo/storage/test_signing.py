from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.errors import ConfigError
from grpo.storage.signing import KEY, Unverified, key_file, key_name, sign, verify
from tests.places import ROOT

DOCUMENT = {"name": "desk", "tags": {"b": "2", "a": "1"}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a key."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    monkeypatch.delenv(KEY, raising=False)
    return tmp_path


def _fault(kind: str, text: str | None) -> str:
    with pytest.raises(Unverified) as refusal:
        verify(kind, text)
    return refusal.value.fault


def test_a_signed_document_is_read_by_its_kind():
    """The signature of a version is not that of a promotion."""
    text = sign("version", DOCUMENT)
    assert verify("version", text) == DOCUMENT
    assert _fault("promotion", text) == "was changed after it was signed"


@pytest.mark.parametrize("place", [("document", "name"), ("mac",)])
def test_a_changed_document_or_signature_is_noticed(place: tuple[str, ...]):
    signed = json.loads(sign("version", DOCUMENT))
    part = signed
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = part[place[-1]] + "x"
    assert _fault("version", json.dumps(signed)) == "was changed after it was signed"


def test_another_spelling_of_the_same_document_is_the_same_document():
    """A registry may keep JSON with blanks and other orders of keys."""
    assert verify("version", json.dumps(json.loads(sign("version", DOCUMENT)), indent=3)) == DOCUMENT


@pytest.mark.parametrize(
    "text",
    [
        None, "", "x", "null", "[]", "{}", '{"document": 1, "key": "a", "mac": "b"}', "[" * 100_000,
        '{"document": {}, "key": 1, "mac": "b"}', '{"document": {}, "key": "a", "mac": null}', "9" * 200_000,
    ],
    ids=lambda text: str(text)[:20],
)  # fmt: skip
def test_what_is_no_signed_document_is_not_signed(text: str | None):
    """Also what no parser ends with: nesting, length, digits."""
    assert _fault("version", text) == "is not signed"


def test_half_a_surrogate_pair_and_nested_documents_are_refused():
    signed = json.loads(sign("version", DOCUMENT))
    assert _fault("version", json.dumps(signed | {"mac": "\ud800"})) == "was changed after it was signed"
    deep = json.dumps(signed).replace('"document": {', '"document": {"deep": ' + "[" * 900 + "]" * 900 + ", ")
    assert _fault("version", deep) == "was changed after it was signed"


def test_a_document_of_another_key_is_told_from_a_changed_one(monkeypatch: pytest.MonkeyPatch):
    """And so is one where this home has no key: looking makes none."""
    monkeypatch.setenv(KEY, "a" * 32)
    text = sign("version", DOCUMENT)
    monkeypatch.setenv(KEY, "b" * 32)
    assert _fault("version", text) == "was signed with another key"
    monkeypatch.delenv(KEY)
    assert _fault("version", text) == "was signed with another key"
    assert not key_file().exists()


def test_the_key_is_readable_by_its_owner_alone(home: Path):
    """A file that was made readable is closed again, and the key is not in what it signs."""
    text = sign("version", DOCUMENT)
    assert key_file() == home / "services" / "signing.key"
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600
    key_file().chmod(0o644)
    assert verify("version", text) == DOCUMENT
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600
    key = key_file().read_text().strip()
    assert len(key) == 64
    assert key not in text


def test_a_line_end_after_the_key_is_not_part_of_it(monkeypatch: pytest.MonkeyPatch):
    """A secret that was made from a file ends with one, and the other machines would not trust its signatures."""
    monkeypatch.setenv(KEY, "a" * 32)
    name = key_name()
    monkeypatch.setenv(KEY, "a" * 32 + "\n")
    assert key_name() == name


def test_a_short_key_is_refused_and_not_repeated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(KEY, "hunter2")
    with pytest.raises(ConfigError) as refusal:
        sign("version", DOCUMENT)
    assert "GRPO_SIGNING_KEY has 7 characters, and needs at least 32" in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_processes_that_start_at_once_get_one_key():
    """Eight of them sign, and each signature holds here."""
    command = [sys.executable, "-c", "from grpo.storage.signing import sign; print(sign('version', {'a': 1}))"]
    started = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    for process in started:
        assert verify("version", process.communicate()[0].strip()) == {"a": 1}
