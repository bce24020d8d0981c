from __future__ import annotations

from pathlib import Path

import pytest

from grpo.config.loading import load_settings
from grpo.config.pipeline import PipelineConfig
from grpo.config.retraining import RetrainConfig
from grpo.errors import ConfigError
from tests.doubles import short_run

REMEDY = r"kind conversation_log is not read\. Write kind: served, and let your server append its conversations"


def test_a_retraining_that_names_the_format_of_other_servers_is_told_what_to_write(tmp_path: Path):
    """In one line, at its place."""
    (tmp_path / "retrain.yaml").write_text(
        "name: weekly\npipeline: run.yaml\nconversations: [{kind: conversation_log, path: log}]\n"
        "curation: {licences: [own]}\n"
    )
    with pytest.raises(ConfigError, match=rf"1 setting.*\n  conversations\.0: {REMEDY}") as error:
        load_settings(tmp_path / "retrain.yaml", RetrainConfig)
    assert len(str(error.value).splitlines()) == 2


def test_demonstrations_in_that_format_are_refused_as_well(tmp_path: Path):
    """They are read from the serving log."""
    demonstrations = {"kind": "conversation_log", "path": "log", "min_reward": 1.0}
    with pytest.raises(ValueError, match=REMEDY):
        PipelineConfig.model_validate(short_run(tmp_path, sft={"demonstrations": demonstrations}))
