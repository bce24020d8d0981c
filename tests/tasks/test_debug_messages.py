"""Debug messages of stages."""

from __future__ import annotations

import logging

import pytest


@pytest.mark.filterwarnings("ignore")
def test_a_stage_logs_its_artifact(server: str, desk_config: dict[str, object], caplog: pytest.LogCaptureFixture):
    """At the level that GRPO_DEBUG enables."""
    from prefect import flow

    from grpo.config.pipeline import PipelineConfig
    from grpo_flows.pipeline import prepare_scenarios
    from grpo_tasks.execution.executor import stage_executor

    config = PipelineConfig.model_validate(desk_config)

    @flow
    def reading() -> None:
        with stage_executor():
            prepare_scenarios(config.scenarios, store=config.store)

    with caplog.at_level(logging.DEBUG, logger="grpo_tasks"):
        reading()
    assert "ingest is computed: " in caplog.text
