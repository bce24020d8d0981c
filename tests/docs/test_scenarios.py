"""docs/scenarios.md: its examples can be played. Its table is tested in tests/docs/test_tables.py."""

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
from grpo.scenario import Scenario
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
