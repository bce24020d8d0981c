"""Everything that one machine keeps, backed up as docs/operations.md says, destroyed, restored, and gone on with."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo.evaluation.report import read_report
from grpo.log.writer import ServingLog
from grpo.serving.access.budgets import TokenBudgets
from grpo.serving.access.keys import KeyStore
from tests.doubles import changed
from tests.e2e.commands import start
from tests.e2e.served import own_environment
from tests.grpo.log.fixtures import turn
from tests.places import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]
NAME = "short"


def _backed_up() -> list[str]:
    """Patterns below the home that the table of the page tells the reader to copy."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.split("\n## Backup and restore\n")[1].split("\n## ")[0]
    rows = [row.split("|")[2] for row in section.splitlines() if row.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`runs/([^`]+)`", row)}
    return sorted(name.replace("NAME", NAME).rstrip("/") for name in named)


def _copy(source: Path, target: Path, patterns: list[str]) -> None:
    """Copy what the patterns name, as `cp -a` does."""
    for path in sorted({path for pattern in patterns for path in source.glob(pattern)}):
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if path.is_dir() else shutil.copy2)(path, place)


async def _serve(folder: Path, user: str) -> None:
    """One answered turn of a user in the serving log."""
    async with ServingLog(folder) as log:
        await log.append(replace(turn("a"), user=log.user_hash(user), time=datetime.now(UTC)))


def test_a_home_that_was_destroyed_goes_on_from_its_backup(desk_config: dict[str, Any], server: str, tmp_path: Path):
    """Stages are cache hits, the champion is believed and evaluated, keys and budgets hold, and users can be erased."""
    home, backup, output = tmp_path / "home", tmp_path / "backup", tmp_path / "output.txt"
    config = changed(
        {name: value for name, value in desk_config.items() if name != "store"},
        gates=[{"kind": "length", "max_ratio": 99.0}],
        registry={"model_name": "kept"},
    )
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    train = ("train", str(tmp_path / "run.yaml"))

    def command(*arguments: str) -> tuple[int, str]:
        return start(*arguments, environment=own_environment(home, server), output=output).end()

    code, printed = command(*train)
    assert code == 0, printed
    asyncio.run(_serve(home / "served", "ann@example.com"))
    secret = KeyStore(home / "keys.json").create("shop", ["chat"])
    budgets = TokenBudgets(home / "budgets.db")
    budgets.add("shop", 70, ("2026-11",))
    budgets.close()

    _copy(home, backup, [*_backed_up(), "artifacts"])
    shutil.rmtree(home)
    assert command("models", "--json")[1].strip() == "[]"
    shutil.rmtree(home, ignore_errors=True)
    _copy(backup, home, ["*"])

    code, printed = command(*train)
    assert code == 0, printed
    stages = read_report(home / NAME / "report.json").stages
    assert [stage.name for stage in stages if stage.runs > stage.cached] == []
    (version,) = json.loads(command("models", "--json")[1])
    assert "champion" in version["aliases"]
    code, printed = command("evaluate", str(tmp_path / "run.yaml"), "--model", "models:/kept@champion")
    assert code == 0, printed
    caller = KeyStore(home / "keys.json").caller(secret)
    assert caller is not None
    assert caller.name == "shop"
    budgets = TokenBudgets(home / "budgets.db")
    assert budgets.used("shop", "2026-11") == 70
    budgets.close()
    code, printed = command("erase", "--user", "ann@example.com")
    assert code == 0, printed
    assert "erased 1 turns" in printed


def test_the_page_names_what_a_home_keeps():
    """Databases, the key and the logins, models, the log, keys and budgets, and the reports of runs."""
    assert {
        "mlflow.db",
        "prefect/prefect.db",
        "services/signing.key",
        "services/*.login",
        "mlartifacts",
        "stores.json",
        "served",
        "keys.json",
        "budgets.db",
        NAME,
    } <= set(_backed_up())
