"""A stage's inputs and result on their way to another machine and back."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.agent import PythonAgentSettings
from grpo.config.episode_parts import EpisodeParts
from grpo.config.pipeline import PipelineConfig
from grpo.config.renderer import RendererSettings
from grpo.errors import ConfigError, NoLearningSignal
from grpo.identity.cache_identity import stage_key
from grpo.identity.code import source_digest
from grpo_flows.stage import STAGES, run_received, run_stage
from grpo_tasks.execution.remote_messages import decode, encode, read_error, read_result_artifact, write_result_artifact
from grpo_tasks.execution.stage import uncached_stage
from grpo_tasks.rollout_request import RolloutRequest
from grpo_tasks.split import SplitResult, split
from grpo_tasks.train import train
from tests.doubles import put_file

STORE = "s3://bucket"


def _artifact(kind: str) -> Artifact:
    return Artifact(uri=f"s3://bucket/{kind}", sha256=kind, kind=kind)


@pytest.fixture
def inputs(desk_config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Inputs of each stage that can be sent, as a run gives them."""
    config = PipelineConfig.model_validate(desk_config)
    common = {"seed": 3, "store": STORE}
    return {
        "rollout": {
            "request": RolloutRequest(
                checkpoint=_artifact("checkpoint"),
                scenarios=_artifact("scenarios"),
                split=_artifact("split"),
                parts=EpisodeParts(
                    environment=config.environment,
                    agent=PythonAgentSettings(kind="python", object="json:JSONDecoder", options={"strict": True}),
                ),
                settings=config.rollout,
                seed=3,
            ),
            "samples": 4,
            "temperature": 0.7,
            "part": "heldout",
            "round": 0,
            "shard": 1,
            "curriculum": _artifact("curriculum"),
            "store": STORE,
        },
        "train": {
            "scored": (_artifact("scored"), _artifact("further")),
            "parent": _artifact("parent"),
            "base": _artifact("base"),
            "settings": config.training,
            "renderer": RendererSettings(kind="python", object="json:JSONDecoder", options={"strict": True}),
            "iteration": 0,
            "samplers": ("earlier",),
            "keep_parent": True,
            "teacher": _artifact("teacher"),
            "scenarios": _artifact("scenarios"),
            **common,
        },
        "evaluate": {
            "champion": _artifact("champion"),
            "candidate": _artifact("candidate"),
            "scenarios": _artifact("scenarios"),
            "base": _artifact("base"),
            "settings": config.evaluation,
            "metric": "success",
            **common,
        },
    }


@pytest.mark.parametrize("name", sorted(STAGES))
def test_inputs_arrive_as_they_were_sent(inputs: dict[str, dict[str, Any]], name: str):
    """The same values of the same types, and so the same cache identity on both machines."""
    stage, given = STAGES[name], inputs[name]
    arrived = decode(stage, encode(stage, given))
    assert arrived == given
    assert stage_key(name, arrived) == stage_key(name, given)


def test_an_input_that_the_stage_does_not_take_is_refused(inputs: dict[str, dict[str, Any]]):
    """Another version of the stage on the other side is an error that names the field."""
    with pytest.raises(ValueError, match="colour"):
        decode(train, {**encode(train, inputs["train"]), "colour": "red"})


def test_an_error_comes_back_as_its_type_and_text():
    """A `GRPOError` comes back with its type; any other text is not an error of the pipeline."""
    error = read_error("NoLearningSignal: no group has two rewards: nothing to learn")
    assert isinstance(error, NoLearningSignal)
    assert str(error) == "no group has two rewards: nothing to learn"
    assert read_error("ValueError: no") is None
    assert read_error("exited with code 1") is None


@pytest.mark.usefixtures("server")
def test_a_worker_with_other_sources_refuses(inputs: dict[str, dict[str, Any]]):
    """Both versions and the remedy are said: their numbers might differ."""
    state = run_stage("train", encode(train, inputs["train"]), "elsewhere", return_state=True)
    error = read_error(state.message or "")
    assert isinstance(error, ConfigError)
    assert f"runs grpo sources {source_digest()}" in str(error)
    assert "elsewhere" in str(error)


def test_a_store_that_the_worker_does_not_see_is_named(inputs: dict[str, dict[str, Any]], tmp_path: Path):
    """A folder of another machine: the remedy is an address that both reach."""
    sent = encode(train, {**inputs["train"], "store": str(tmp_path / "of-the-sender")})
    with pytest.raises(ConfigError, match=r"has no folder .*of-the-sender.*s3://"):
        run_received(train, sent)


def test_a_result_is_read_back_as_the_stage_made_it(tmp_path: Path, inputs: dict[str, dict[str, Any]]):
    """The message of the run's state holds the address, the store the result; a changed one is refused."""
    store = ArtifactStore(str(tmp_path))
    from grpo_tasks.rollout import RolloutResult, rollout

    made = RolloutResult(rollout=_artifact("rollout"), episodes=8, compute_s=1.5)
    left = write_result_artifact(store, made)
    assert read_result_artifact(rollout, left.model_dump_json(), str(tmp_path)) == made


def test_a_remote_stage_shares_its_cache_with_the_stage_itself(tmp_path: Path):
    """A result that another machine computed is a hit here: it is not computed, and not asked for again."""
    sent: list[dict[str, Any]] = []

    def send(given: dict[str, Any]) -> SplitResult:
        sent.append(given)
        return SplitResult(scenarios=artifact, split=artifact, train=3, heldout=1, compute_s=1.5)

    artifact = put_file(ArtifactStore(str(tmp_path)), "split", ".json", lambda path: path.write_text("{}"))
    given = {"scenarios": _artifact("scenarios"), "validation_fraction": 0.25, "limit": None, "store": str(tmp_path)}
    inputs = split.bind(**given).inputs
    assert split.cached(inputs, send, alone=False).train == 3
    assert split.fn(**given).train == 3
    assert split.cached(inputs, send, alone=False).train == 3
    assert [inputs["validation_fraction"] for inputs in sent] == [0.25]


def test_a_stage_whose_machine_is_drained_crashes_and_does_not_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """SIGTERM raises an exception of Prefect's handler, which is not an error of the stage."""

    class Terminated(BaseException):
        pass

    def terminate(signum: int, frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    monkeypatch.setitem(STAGES, "split", drained)
    try:
        with pytest.raises(Terminated):
            run_stage.fn("split", {"store": str(tmp_path)}, source_digest())
    finally:
        signal.signal(signal.SIGTERM, before)


@uncached_stage
def drained(*, store: str) -> SplitResult:
    """A stage in which SIGTERM arrives."""
    signal.raise_signal(signal.SIGTERM)
    raise AssertionError(store)
