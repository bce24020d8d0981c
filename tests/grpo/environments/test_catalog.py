"""Scenarios that an environment cannot play."""

from __future__ import annotations

import re
import sys

import pytest

from grpo.config.environments import (
    ConversationSettings,
    EnvironmentSettings,
    GymnasiumTextSettings,
    ReasoningGymSettings,
    SimulatedUserSettings,
    SupportDeskSettings,
    TaskSettings,
    TextArenaSettings,
    TextWorldSettings,
)
from grpo.contrib.datasets.tau2_bench import read_tau2_bench
from grpo.environments.catalog import WORLDS, find_unplayable, load_worlds, make_environment
from grpo.errors import BudgetError, ConfigError
from grpo.scenario import Scenario
from tests.places import PUBLISHED, ROOT

SCRIPTED = [Scenario(id=f"s{k}", user_responses=("hi",)) for k in range(9)]
WITH_A_GOAL = Scenario(id="g", goal="I want a refund.")
BREWING = Scenario(id="b", user_responses=("hi",), tools=({"name": "brew", "parameters": {}},))


def test_few_unplayable_scenarios_are_named_with_the_reason():
    """One of ten has no script, one of ten no world; a tenth may be left out."""
    refused = find_unplayable(ConversationSettings(kind="conversation"), [*SCRIPTED, WITH_A_GOAL], max_fraction=0.1)
    assert list(refused) == ["g"]
    assert "has a goal but no script" in refused["g"]
    refused = find_unplayable(TaskSettings(kind="task"), [*SCRIPTED, BREWING], max_fraction=0.1)
    assert refused == {"b": "scenario b is not playable: no world has brew. Leave it out"}


def test_too_many_unplayable_scenarios_raise_with_the_first_reason():
    """One of ten is more than 5 %."""
    with pytest.raises(BudgetError, match=r"1 of 10 scenarios cannot be played in environment task, at most 5\.0% may"):
        find_unplayable(TaskSettings(kind="task"), [*SCRIPTED, BREWING], max_fraction=0.05)


def test_sources_without_a_playable_scenario_are_refused_at_any_fraction():
    """Nothing would be left."""
    with pytest.raises(BudgetError, match="1 of 1 scenarios cannot be played in environment simulated_user"):
        find_unplayable(SimulatedUserSettings(kind="simulated_user"), SCRIPTED[:1], max_fraction=1.0)


def test_the_users_model_is_not_called():
    """Its address leads nowhere."""
    settings = SimulatedUserSettings(kind="simulated_user", model="openai+http://127.0.0.1:9/v1#none")
    assert find_unplayable(settings, [WITH_A_GOAL], max_fraction=0.0) == {}


def test_the_support_desk_plays_only_scenarios_with_orders():
    """A logged conversation on something else has none, and its episode would fail at its start."""
    settings = SupportDeskSettings(kind="support_desk")
    orders = {"orders": {"4711": {"price": 30}}}
    playable = [scenario.model_copy(update={"id": f"with-{scenario.id}", "world": orders}) for scenario in SCRIPTED]
    reasons = find_unplayable(settings, [*SCRIPTED, *playable], max_fraction=0.5)
    assert set(reasons) == {scenario.id for scenario in SCRIPTED}
    assert "world needs orders, the records by their numbers" in reasons[SCRIPTED[0].id]


def test_every_world_of_contrib_is_loaded_by_its_name():
    """The catalog lists each module of the folder; only the last world has no key of its own."""
    modules = {path.stem for path in (ROOT / "grpo" / "contrib" / "worlds").glob("*.py")} - {"__init__"}
    assert sorted(WORLDS) == sorted(modules)
    *others, last = load_worlds()
    assert all(world.state_key for world in others)
    assert last.state_key is None


@pytest.mark.parametrize(
    ("settings", "package", "extra"),
    [
        (GymnasiumTextSettings(kind="gymnasium_text"), "minigrid", "minigrid"),
        (ReasoningGymSettings(kind="reasoning_gym"), "reasoning_gym", "reasoning"),
        (TextArenaSettings(kind="textarena"), "textarena", "textarena"),
        (TextWorldSettings(kind="textworld"), "textworld", "textworld"),
    ],
    ids=["gymnasium_text", "reasoning_gym", "textarena", "textworld"],
)
def test_without_its_package_an_environment_names_the_extra(
    settings: EnvironmentSettings, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
):
    """Before any stage, with the command that installs it."""
    monkeypatch.setitem(sys.modules, package, None)
    for module in [name for name in sys.modules if name.startswith(f"grpo.environments.{settings.kind}.")]:
        monkeypatch.delitem(sys.modules, module)
    command = re.escape(f"pip install 'grpo-agent-framework[{extra}]'")
    with pytest.raises(ConfigError, match=rf"package {package} is not installed\. Call {command}"):
        make_environment(settings)


@pytest.mark.skipif(not (PUBLISHED / "tau2_bench").exists(), reason="the published tasks of tau2_bench are not here")
@pytest.mark.parametrize(
    ("domain", "tasks", "count"), [("telecom", "tasks_small.json", 20), ("mock", "tasks.json", 10)]
)
def test_tasks_of_a_domain_without_a_world_are_read_and_refused(domain: str, tasks: str, count: int):
    """All are valid scenarios; the reason names the tools that no world has."""
    records = read_tau2_bench(PUBLISHED / "tau2_bench", domain, tasks)
    scenarios = [Scenario.model_validate(record.data) for record in records]
    with pytest.raises(BudgetError, match=rf"{count} of {count} scenarios cannot be played.*no world has"):
        find_unplayable(TaskSettings(kind="task"), scenarios, max_fraction=0.05)
