from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_local.managed_process import ManagedProcess
from grpo_local.servers import mlflow_service, prefect_service

SECRETS = (
    *("GRPO_SIGNING_KEY", "GRPO_ROLLOUT_KEY", "GRPO_SERVE_DATABASE", "GRPO_NOTIFY_URL"),
    *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HF_TOKEN", "WANDB_API_KEY", "GH_PAT", "DATABASE_URL", "PGP_KEY"),
)
BUCKETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_KEY", "GOOGLE_APPLICATION_CREDENTIALS")
KEPT = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "PYTHONPATH"),
    *("HTTP_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
    *("PGPASSFILE", "PGPASSWORD", "PGSSLROOTCERT", "GRPO_HOME", "DO_NOT_TRACK"),
)
OF_PREFECT = (
    *("PREFECT_HOME", "PREFECT_API_DATABASE_CONNECTION_URL", "PREFECT_SERVER_DATABASE_PASSWORD"),
    "PREFECT_SERVER_API_AUTH_STRING",
)
OF_MLFLOW = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_S3_ENDPOINT_URL", "MLFLOW_FLASK_SERVER_SECRET_KEY")


@pytest.mark.parametrize(
    ("service", "database", "expected"),
    [
        (prefect_service, "sqlite:////x/mlflow.db", OF_PREFECT),
        (mlflow_service, "sqlite:////x/mlflow.db", OF_MLFLOW),
        (mlflow_service, "postgresql://db/mlflow", (*OF_MLFLOW, *BUCKETS)),
    ],
    ids=["prefect", "mlflow", "mlflow with a shared database"],
)
def test_a_server_gets_its_own_settings_and_no_key_of_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    service: Callable[[Path], ManagedProcess],
    database: str,
    expected: tuple[str, ...],
) -> None:
    """What every program needs passes: paths, locale, proxies, certificates, and the login of PostgreSQL."""
    names = {*SECRETS, *BUCKETS, *KEPT, *OF_PREFECT, *OF_MLFLOW}
    for name in names:
        monkeypatch.setenv(name, "a value")
    for name, value in {
        "MLFLOW_TRACKING_URI": database,
        "GRPO_MLFLOW_PORT": "5000",
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": "4200",
    }.items():
        monkeypatch.setenv(name, value)
    assert names & {*service(tmp_path).variables} == {*KEPT, *expected}
