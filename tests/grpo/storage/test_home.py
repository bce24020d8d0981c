from __future__ import annotations

from pathlib import Path

import pytest

from grpo.config.pipeline import PipelineConfig
from grpo.errors import ConfigError
from grpo.identity.cache_identity import run_settings
from grpo.storage.home import home, tighten
from tests.doubles import short_run


@pytest.mark.parametrize("name", ["my home", "Häuschen", "home-1.2_x", "家"])
def test_a_home_may_have_spaces_and_letters_of_any_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """It is the folder that GRPO_HOME names."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / name))
    assert home() == tmp_path / name


@pytest.mark.parametrize("character", ["?", "#", "%", "\\", "\n"])
def test_a_home_with_characters_that_break_uris_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, character: str
):
    """Characters that end or escape a path in a URI are named, and nothing is written."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / f"a{character}b"))
    with pytest.raises(ConfigError, match=r"GRPO_HOME .* holds .*Choose a folder without"):
        home()
    assert list(tmp_path.iterdir()) == []


def test_where_a_run_is_kept_does_not_decide_its_result(tmp_path: Path):
    """Another store, another number of checkpoints that stay, stages on another machine: the same run."""
    config = PipelineConfig.model_validate(short_run(tmp_path))
    elsewhere = {"store": "s3://bucket/artifacts", "save_total_limit": None, "compute": {"gpu_stages": {}}}
    assert run_settings(PipelineConfig.model_validate({**short_run(tmp_path), **elsewhere})) == run_settings(config)
    assert run_settings(PipelineConfig.model_validate({**short_run(tmp_path), "seed": 4})) != run_settings(config)


def test_artifacts_lie_in_the_home_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whatever the working folder is."""
    config = {name: value for name, value in short_run(tmp_path).items() if name != "store"}
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert PipelineConfig.model_validate(config).store == str(tmp_path / "home" / "artifacts")


def test_tightening_takes_the_rights_of_others_and_follows_no_link(tmp_path: Path):
    """A folder and a file of it; the file that a link names elsewhere stays as it is."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir(mode=0o755)
    (home / "budgets.db").touch()
    elsewhere.touch()
    for path, mode in ((home, 0o755), (home / "budgets.db", 0o664), (elsewhere, 0o644)):
        path.chmod(mode)
    (home / "link").symlink_to(elsewhere)
    assert tighten(home) == 2
    assert [path.stat().st_mode & 0o777 for path in (home, home / "budgets.db", elsewhere)] == [0o700, 0o600, 0o644]
    assert tighten(home) == 0
