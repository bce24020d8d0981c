"""Check of the certificate with which `grpo up --serve` serves a model over HTTPS."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from grpo.config.loading import load_settings
from grpo.config.serving import ServeConfig
from grpo.errors import GRPOError
from grpo_local.checks import CheckResult, State
from grpo_local.serving import served_file

SOON = timedelta(days=14)
"""Time before the end of a certificate from which on it is a warning. Renewals usually happen 30 days before it."""


def check_serving(home: Path) -> Iterator[CheckResult]:
    """Check the settings and the certificate of the model that this home serves, if it serves one."""
    file = served_file(home)
    if not file.exists():
        return
    try:
        settings = load_settings(file, ServeConfig)
    except GRPOError as error:
        detail, _, remedy = str(error).partition(". ")
        yield _result("settings", "problem", detail, remedy or "Call `grpo down`, and `grpo up --serve` again")
        return
    if settings.tls is not None:
        yield check_certificate(Path(settings.tls.certificate), Path(settings.tls.private_key))


def check_certificate(certificate: Path, private_key: Path) -> CheckResult:
    """Check that a server can use a certificate with its key, and how long clients will accept it."""
    from cryptography import x509

    renew = f"Renew {certificate}, and start the server again, because it reads the file only at its start"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, private_key, password="")
        chain = x509.load_pem_x509_certificates(certificate.read_bytes())
    except (OSError, ValueError) as error:  # an error of TLS is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        remedy = "Name a certificate in PEM and its own key, without a password, in `tls` of the settings"
        return _result("certificate", "problem", f"{certificate} cannot be used with {private_key}: {reason}", remedy)
    begin, end = max(part.not_valid_before_utc for part in chain), min(part.not_valid_after_utc for part in chain)
    now = datetime.now(UTC)
    if begin > now:
        detail = f"{certificate} is valid from {begin:%Y-%m-%d %H:%M} UTC on, so that clients refuse it"
        return _result("certificate", "problem", detail, "Set the clock of this machine, or wait")
    if end <= now:
        detail = f"{certificate} has expired at {end:%Y-%m-%d %H:%M} UTC, so that clients refuse it"
        return _result("certificate", "problem", detail, renew)
    detail = f"{certificate} is valid until {end:%Y-%m-%d %H:%M} UTC"
    return (
        _result("certificate", "warning", detail, renew) if end - now < SOON else _result("certificate", "ok", detail)
    )


def _result(name: str, state: State, detail: str, remedy: str = "") -> CheckResult:
    return CheckResult(area="serving", name=name, state=state, detail=detail, remedy=remedy)
