"""What `grpo doctor` says of the certificate of a served model."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from grpo_local.certificates import check_serving
from grpo_local.serving import served_file

DAY = dt.timedelta(days=1)


def write_certificate(folder: Path, begins: dt.timedelta, ends: dt.timedelta) -> None:
    """A certificate whose validity begins and ends after these times from now on, and its key."""
    key, name, now = ec.generate_private_key(ec.SECP256R1()), x509.Name([]), dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose model is served with the certificate in this folder."""
    file = served_file(tmp_path)
    file.parent.mkdir()
    tls = {"certificate": str(tmp_path / "certificate.pem"), "private_key": str(tmp_path / "key.pem")}
    file.write_text(yaml.safe_dump({"model": "models:/desk@champion", "tls": tls}))
    return tmp_path


@pytest.mark.parametrize(
    ("begins", "ends", "state", "words"),
    [
        (-DAY, 90 * DAY, "ok", "is valid until"),
        (-DAY, 13 * DAY, "warning", "is valid until"),
        (-2 * DAY, -DAY, "problem", "has expired at"),
        (DAY, 90 * DAY, "problem", "is valid from"),
    ],
)
def test_a_certificate_is_checked_before_clients_refuse_it(
    home: Path, begins: dt.timedelta, ends: dt.timedelta, state: str, words: str
) -> None:
    write_certificate(home, begins, ends)
    (check,) = check_serving(home)
    assert (check.state, words in check.detail, bool(check.remedy)) == (state, True, state != "ok")


def test_a_certificate_that_the_server_cannot_use_is_a_problem(home: Path) -> None:
    """It is missing, its key belongs to another one, or it is cut off. Nobody is asked for a password."""
    assert [check.state for check in check_serving(home)] == ["problem"]
    write_certificate(home, -DAY, 90 * DAY)
    of_first = (home / "key.pem").read_bytes()
    write_certificate(home, -DAY, 90 * DAY)
    (home / "key.pem").write_bytes(of_first)
    (check,) = check_serving(home)
    assert (check.state, "key.pem" in check.detail) == ("problem", True)
    (home / "certificate.pem").write_text("-----BEGIN CERTIFICATE-----\nMIIB")
    assert [check.state for check in check_serving(home)] == ["problem"]


def test_settings_that_cannot_be_read_are_a_problem_and_a_home_without_them_has_none(home: Path) -> None:
    served_file(home).write_text("")
    (check,) = check_serving(home)
    assert (check.name, check.state, bool(check.remedy)) == ("settings", "problem", True)
    served_file(home).unlink()
    assert list(check_serving(home)) == []
