from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from grpo.config.pipeline import load_config
from grpo.errors import ConfigError
from tests.doubles import changed, short_run


@pytest.mark.parametrize(
    ("section", "value", "place"),
    [
        ("name", "../x", "name"),
        ("name", "a" * 101, "name"),
        ("name", "mlartifacts", "name"),
        ("name", "Prefect", "name"),
        ("name", "ü", "name"),
        ("registry", {"experiment": "../../x"}, r"registry\.experiment"),
        ("registry", {"experiment": "a" * 101}, r"registry\.experiment"),
        ("registry", {"model_name": "a" * 300}, r"registry\.model_name"),
        ("registry", {"tags": {"a/b\n": "x"}}, r"registry\.tags"),
        ("registry", {"tags": {"": "x"}}, r"registry\.tags"),
        ("registry", {"tags": {"team": "x" * 5001}}, r"registry\.tags\.team"),
    ],
)
def test_a_name_that_is_invalid_for_a_folder_or_the_registry_is_refused(
    tmp_path: Path, section: str, value: object, place: str
):
    """On reading the config, not after the training."""
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(changed(short_run(tmp_path), **{section: value})))
    with pytest.raises(ConfigError, match=rf"(?m)^  {place}"):
        load_config(path)
