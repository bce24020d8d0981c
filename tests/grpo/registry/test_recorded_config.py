from __future__ import annotations

from pathlib import Path

import pytest

from grpo.config.pipeline import PipelineConfig
from grpo.errors import ConfigError
from grpo.registry.recorded_config import IMPORT_FROM, import_folders, recorded_config
from tests.doubles import short_run
from tests.grpo.registry.making import make_provenance


def test_settings_of_another_release_are_named_with_the_remedy(tmp_path: Path):
    """A gate with a setting that is gone: the service does not need the gates, and a repetition does."""
    config = PipelineConfig.model_validate(short_run(tmp_path)).model_dump(mode="json")
    gates = [{"kind": "improvement", "one_key_decides": False}]
    provenance = make_provenance().model_copy(update={"config": {**config, "gates": gates}})
    with pytest.raises(
        ConfigError,
        match=r"the config that models:/m/1 was trained with cannot be read by this release: "
        r"gates\.0\.one_key_decides: .*Use the release that registered it, or train it again",
    ):
        recorded_config("models:/m/1", provenance)
    assert recorded_config("models:/m/1", provenance, without=("gates",)).seed == config["seed"]


def test_the_folders_of_user_code_are_found_at_any_depth():
    """In a section, in an item of a list, and in a section within it."""
    own = {IMPORT_FROM: "/code/rewards", "parts": [{IMPORT_FROM: "/code/parts"}]}
    assert list(import_folders({"agent": {IMPORT_FROM: "/code/agents"}, "reward": [{"kind": "length"}, own]})) == [
        "/code/agents",
        "/code/rewards",
        "/code/parts",
    ]
