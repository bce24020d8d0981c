"""Debug messages of stages."""

from __future__ import annotations

import logging

import pytest


@pytest.mark.filterwarnings("ignore")
def test_a_stage_logs_its_artifact(server: str, desk_config: dict[str, object], caplog: pytest.LogCaptureFixture):
    """At the level that GRPO_DEBUG enables."""
    from prefect import flow
    from prefect.task_runners import ThreadPoolTaskRunner

    from flows.scenarios import prepare_scenarios
    from grpo.config.pipeline import PipelineConfig

    config = PipelineConfig.model_validate(desk_config)
    ledger = Ledger(ThreadPoolTaskRunner())
    with caplog.at_level(logging.DEBUG, logger="flows"):
        flow(lambda: prepare_scenarios(config.scenarios, ledger, config.store) and None, name="reading")()
    assert "ingest is computed: " in caplog.text
