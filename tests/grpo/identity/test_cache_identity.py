"""Cache identity of stages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from grpo.artifacts import Artifact
from grpo.config.pipeline import PipelineConfig
from grpo.config.rewards import RewardComponent
from grpo.config.rollout import RolloutSettings
from grpo.identity.cache_identity import RunInputs, identity, pin_models, stage_key
from grpo.identity.code import code_digest, external_digests, source_digest
from grpo.rewards.judge.rubrics import RUBRICS
from tests.doubles import short_run
from tests.hub_server import hub_server, model_files
from tests.places import DESK_MODEL

HERE = Artifact(uri="/a/x", sha256="abc", kind="rollout")


def test_an_artifact_is_its_content_wherever_it_lies():
    """Another address of the same bytes is the same input; other bytes are not."""
    moved = HERE.model_copy(update={"uri": "/b/x"})
    other = HERE.model_copy(update={"sha256": "abd"})
    assert stage_key("score", {"rollout": HERE}) == stage_key("score", {"rollout": moved})
    assert stage_key("score", {"rollout": HERE}) != stage_key("score", {"rollout": other})


def test_every_input_but_the_stores_address_is_part_of_the_identity():
    """Name, numbers and nested settings count; `store` does not."""
    reward = (RewardComponent(kind="checks", weight=0.3),)
    key = stage_key("score", {"reward": reward, "seed": 1, "store": "a"})
    assert key == stage_key("score", {"reward": reward, "seed": 1, "store": "b"})
    assert key != stage_key("score", {"reward": reward, "seed": 2, "store": "a"})
    assert key != stage_key("rollout", {"reward": reward, "seed": 1, "store": "a"})
    heavier = (RewardComponent(kind="checks", weight=0.4),)
    assert key != stage_key("score", {"reward": heavier, "seed": 1, "store": "a"})


def test_addresses_of_servers_are_no_part_of_the_identity_and_the_backend_is():
    """A rollout on other servers has the same tokens; in another backend sums have another order."""
    ours = RolloutSettings(backend="servers", servers=("http://a", "http://b"))
    theirs = RolloutSettings(backend="servers", servers=("http://c",), hedge_s=5.0)
    assert stage_key("rollout", {"settings": ours}) == stage_key("rollout", {"settings": theirs})
    assert stage_key("rollout", {"settings": ours}) != stage_key("rollout", {"settings": RolloutSettings()})


def test_the_code_is_part_of_the_identity(monkeypatch: pytest.MonkeyPatch):
    """A change inside grpo recomputes: the digest of the sources stands in the key."""
    before = stage_key("score", {"seed": 1})
    monkeypatch.setattr("grpo.identity.cache_identity.code_digest", lambda: "other")
    assert stage_key("score", {"seed": 1}) != before


def test_a_changed_rubric_is_part_of_the_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its name stands in the config, its words do not: one word more is another digest."""
    shutil.copytree(RUBRICS, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr("grpo.identity.code.RUBRICS", tmp_path)
    before = source_digest.__wrapped__()
    with (tmp_path / "sales.yaml").open("a") as file:
        file.write("# another word\n")
    assert source_digest.__wrapped__() != before


def test_the_digest_of_the_code_holds_that_of_the_sources(monkeypatch: pytest.MonkeyPatch):
    """Other sources with the same packages are another code."""
    before = code_digest.__wrapped__()
    monkeypatch.setattr("grpo.identity.code.source_digest", lambda: "other")
    assert code_digest.__wrapped__() != before


def test_what_has_no_order_cannot_be_an_identity():
    """A set hashes differently in every process, so it is refused."""
    with pytest.raises(TypeError, match="set cannot be part"):
        identity({"a": {1, 2}})


def test_the_models_of_a_config_are_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Policy, teacher and simulated user, by the commit that main names; afterwards the identity takes no request."""
    with hub_server(monkeypatch, tmp_path / "cache") as hub:
        commits = [hub.add(f"acme/{name}", model_files(DESK_MODEL)).branches["main"] for name in ("clerk", "customer")]
        user = {"kind": "simulated_user", "model": "acme/customer"}
        taught = {"distillation": {"teacher_model_name_or_path": "acme/clerk"}}
        config = PipelineConfig.model_validate(
            short_run(tmp_path, policy={"model": "acme/clerk"}, environment=user, training=taught)
        )
        pinned = pin_models(config)
        assert pinned.training.teacher == f"acme/clerk@{commits[0]}"
        assert pinned.policy.model == f"acme/clerk@{commits[0]}"
        assert pinned.environment == config.environment.model_copy(update={"model": f"acme/customer@{commits[1]}"})
        before = external_digests([pinned])
        assert list(before) == [f"model acme/clerk@{commits[0]}", f"model acme/customer@{commits[1]}"]
        hub.repos["acme/customer"].commit({"config.json": b"{}"})
        hub.requests.clear()
        assert external_digests([pinned]) == before
        assert pin_models(pinned) == pinned
        assert hub.requests == []


def test_the_weights_of_a_teacher_are_in_the_identity_of_a_run(tmp_path: Path):
    """Its place is not: a copy of the folder leaves the key of the run, and another weight changes it."""

    def key(folder: Path) -> str:
        taught = {"distillation": {"teacher_model_name_or_path": str(folder)}}
        config = PipelineConfig.model_validate(short_run(tmp_path, training=taught))
        return RunInputs.of(config).key(config)

    one, copied, other = (tmp_path / name for name in ("one", "copied", "other"))
    for folder in (one, copied, other):
        shutil.copytree(DESK_MODEL, folder)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-4}))
    assert key(one) == key(copied)
    assert key(one) != key(other)


def test_settings_that_exchange_their_files_change_the_identity(tmp_path: Path):
    """Of a stage, of a run, and of a third setting that changes from one of the files to the other; a move does not."""

    def keys(*names: str, folder: Path = tmp_path) -> tuple[str, str]:
        rewards = [
            {"kind": "neural", "weight": 0.1 + n / 4, "options": {"model": str(folder / name)}}
            for n, name in enumerate(names)
        ]
        config = PipelineConfig.model_validate(short_run(tmp_path, reward=rewards))
        return stage_key("score", {"reward": config.reward}), RunInputs.of(config).key(config)

    for folder in (tmp_path, tmp_path / "moved"):
        for name in ("a", "b"):
            (folder / name).mkdir(parents=True)
            (folder / name / "config.json").write_text(f'{{"name": "{name}"}}')
    for one, other in zip(keys("a", "b"), keys("b", "a"), strict=True):
        assert one != other
    for one, other in zip(keys("a", "b", "a"), keys("a", "b", "b"), strict=True):
        assert one != other
    assert keys("a", "b") == keys("a", "b", folder=tmp_path / "moved")
