"""docs/scenarios.md: its table is that of the models, and its examples can be played."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from grpo.config.environments import (
    ConversationSettings,
    EnvironmentSettings,
    ReplaySettings,
    SimulatedUserSettings,
    TaskSettings,
    Team,
    TriageSettings,
)
from grpo.environments.catalog import make_environment
from grpo.scenario import Expected, Metadata, Scenario
from tests.places import ROOT

PAGE = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
EXAMPLES = {record["id"]: record for record in map(json.loads, re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL))}
TEAMS = (Team(name="billing"), Team(name="delivery"))
PLAYED: dict[str, EnvironmentSettings] = {
    "late-parcel": ConversationSettings(kind="conversation"),
    "refund-lamp": SimulatedUserSettings(kind="simulated_user"),
    "clean-up": TaskSettings(kind="task"),
    "logged-order": ReplaySettings(kind="replay"),
    "vague-bill": TriageSettings(kind="triage", teams=TEAMS),
}


def test_the_table_has_every_field_with_its_meaning():
    """In the order of the models."""
    wanted = [
        f"| `{prefix}{name}` | {' '.join((field.description or '').split())} |"
        for prefix, model in (("", Scenario), ("expected.", Expected), ("metadata.", Metadata))
        for name, field in model.model_fields.items()
        if prefix or name not in ("expected", "metadata")
    ]
    assert [line for line in PAGE.splitlines() if line.startswith("| `")] == wanted


def test_each_example_has_an_environment():
    """None is left out."""
    assert set(EXAMPLES) == set(PLAYED)


@pytest.mark.parametrize("name", PLAYED)
def test_an_example_can_be_played(name: str):
    """Its environment takes it, and the user begins."""
    scenario, environment = Scenario.model_validate(EXAMPLES[name]), make_environment(PLAYED[name])

    async def begin() -> str:
        await environment.check(scenario)
        return (await environment.reset(scenario, seed=1)).history[-1].content

    assert asyncio.run(begin())
