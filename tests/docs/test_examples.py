"""Every script of docs/examples runs, and ends with another policy than it began with."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo.policy.transformers.model import load
from tests.places import DESK_MODEL, ROOT

EXAMPLES = ROOT / "docs" / "examples"


def run(name: str, *arguments: object, **options: object) -> Any:
    """Return value of an example's `main`."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return asyncio.run(module.main(*arguments, **options))


def _of_trainer(trainer: Any) -> str:
    return str(trainer.agent.policy.hash)


def _of_agent(agent: Any) -> str:
    return str(agent.policy.hash)


RUNS: dict[str, tuple[Callable[[Path], tuple[object, ...]], Callable[[Any], str]]] = {
    "quick_start": (lambda folder: (str(DESK_MODEL), 2), _of_agent),
    "technical_support_agent": (lambda folder: (str(DESK_MODEL), 1), _of_trainer),
    "sales_assistant": (lambda folder: (str(DESK_MODEL), 2), _of_agent),
    "custom_domain_agent": (lambda folder: (str(DESK_MODEL), 2), _of_trainer),
    "complete_grpo_training": (lambda folder: (str(folder / "training"), 2), _of_trainer),
    "train_with_trl": (lambda folder: (1,), _of_trainer),
}


@pytest.mark.parametrize("name", RUNS)
def test_an_example_ends_with_another_policy(tmp_path: Path, name: str):
    """From the tiny model's weights to others."""
    arguments, found = RUNS[name]
    assert found(run(name, *arguments(tmp_path))) != load(DESK_MODEL).hash


def test_the_tutor_says_which_profile_it_chose(capsys: pytest.CaptureFixture[str]):
    """And why."""
    trainer = run("tutor", str(DESK_MODEL), 2)
    assert trainer.profile is not None
    assert f"profile {trainer.profile}: " in capsys.readouterr().out


def test_the_customer_service_example_counts_who_was_served():
    """A share of the 24 held-out customers."""
    after = run("customer_service_agent", 2)
    assert (after["success"] * 24) == pytest.approx(round(after["success"] * 24))


def test_no_example_is_left_out():
    """A new script is run here too."""
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*RUNS, "tutor", "customer_service_agent"}
