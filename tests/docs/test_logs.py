"""docs/logs.md: its files, ingested with its settings, have the counts that it shows, and can be replayed."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo.config.pipeline import load_config
from grpo.environments.catalog import find_unplayable
from grpo.environments.replay import ReplayEnvironment
from grpo.messages import Message, ToolCall
from grpo.scenario import Scenario
from grpo.scenarios.table import read_scenarios
from grpo_cli.app import app
from tests.places import ROOT

PAGE = (ROOT / "docs" / "logs.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w.]+)`\n\n```\w+\n(.*?)```", PAGE, flags=re.DOTALL | re.MULTILINE))


@pytest.fixture
def ingested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[Scenario]]:
    """Output of the command in the folder of the files, and its scenarios."""
    for name, content in FILES.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["ingest", "logs.yaml", "--folder", "tables"])
    assert result.exit_code == 0, result.output
    return result.output, list(read_scenarios(tmp_path / "tables" / "scenarios.parquet"))


@pytest.mark.filterwarnings("ignore")
def test_the_ingestion_prints_what_the_page_shows(ingested: tuple[str, list[Scenario]]):
    """Counts, examples, and the place and reason of the broken record."""
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)
    assert shown in re.sub(r"(?m)^(  \w+-\d)-[0-9a-f]{6} ", r"\1 ", ingested[0])


@pytest.mark.filterwarnings("ignore")
def test_every_scenario_of_the_page_can_be_replayed(ingested: tuple[str, list[Scenario]]):
    """And the calls of its first one have the results that the page shows."""
    _, scenarios = ingested
    assert len(scenarios) == 9
    assert find_unplayable(load_config(Path("logs.yaml")).environment, scenarios, max_fraction=0.0) == {}
    (error,) = re.findall(r"```json\n(\{\"error\".*?)```", PAGE, flags=re.DOTALL)

    async def call(order: str) -> object:
        environment = ReplayEnvironment()
        made = ToolCall(name="look_up", arguments={"order": order})
        message = Message(role="assistant", content="", tool_calls=(made,))
        result = await environment.step(await environment.reset(scenarios[0]), message)
        assert result.response is not None
        return json.loads(result.response.content)

    assert asyncio.run(call("7")) == {"state": "lost"}
    assert asyncio.run(call("9")) == json.loads(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("ingested")
def test_nothing_that_the_page_trains_on_is_refused():
    """Every check that a run makes before its first stage, in a dry run with the same file."""
    result = CliRunner().invoke(app, ["train", "logs.yaml", "--dry-run"])
    assert result.exit_code == 0, result.output
    (counts,) = re.findall(r"scenarios: (\d) to train on, (\d) held out", result.output)
    assert sum(map(int, counts)) == 9
