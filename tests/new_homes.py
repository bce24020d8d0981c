"""New databases of Prefect and MLflow, made once on this machine and copied into homes of tests.

The migrations of a new home cost Prefect's server four seconds, and MLflow one. A copy is what `grpo migrate` makes: it
has tables without rows, except for the experiment 0 that MLflow makes, whose folder nothing uses. No id of a server is
in it. Homes that are made by the commands of a user begin empty all the same (tests/e2e/test_page_shell.py and
tests/e2e/test_wheel.py), as do those that are killed (tests/e2e/test_kill.py).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

from grpo.environment_variables import variables_set
from grpo.storage.locks import file_lock
from tests.places import ROOT

PREFECT = "prefect/prefect.db"
MLFLOW = "mlflow.db"
_CACHE = ROOT / ".pytest_cache" / "homes"
_PACKAGES = ("prefect", "mlflow", "alembic", "sqlalchemy")
"""Their versions decide what the databases are."""


def put_databases(home: Path, *names: str) -> Path:
    """Put new databases into a home, of Prefect and MLflow or only these, unless it has them. Returns the home."""
    for name in names or (PREFECT, MLFLOW):
        target = home / name
        if not target.exists():
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial = target.with_name(f".{target.name}.{os.getpid()}")
            shutil.copy2(_made() / name, partial)
            partial.replace(target)
    return home


def _made() -> Path:
    """Folder of the databases. The first process makes it, and the others wait."""
    key = hashlib.sha256(" ".join(map(version, _PACKAGES)).encode()).hexdigest()[:16]
    made = _CACHE / key
    with file_lock(_CACHE / f"{key}.lock"):
        if not made.is_dir():
            from grpo_local.upgrade import upgrade

            folder = Path(tempfile.mkdtemp(prefix="new-", dir=_CACHE))
            own = {"PREFECT_HOME": str(folder / "prefect"), "MLFLOW_TRACKING_URI": f"sqlite:///{folder / MLFLOW}"}
            with variables_set({**own, "PREFECT_API_URL": None, "PREFECT_API_DATABASE_CONNECTION_URL": None}):
                assert len(list(upgrade(folder))) == 2
            folder.rename(made)
    return made
