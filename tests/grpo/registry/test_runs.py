"""Runs in the tracking store: their parameters, metrics, files and ends."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from grpo.artifacts import Artifact, ArtifactStore
from grpo.errors import AddressError, RegistryError, SignatureError
from grpo.registry import ModelVersion, Registry
from tests.grpo.registry.making import ANNA, put_version

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals


def _run(registry: Registry, key: str, **params: str) -> str:
    return registry.open_run("runs", f"run of {key}", run_key=key, params=params)


def test_a_run_is_opened_once_with_its_parameters(registry: Registry):
    """The same key gives the same record; another key another one, in the same experiment."""
    first = _run(registry, "opened", seed="3")
    again, other = _run(registry, "opened", seed="4"), _run(registry, "opened too")
    assert first == again != other
    record = registry.client.get_run(first)
    assert record.data.params == {"seed": "3"}
    assert (record.info.run_name, record.data.tags["run_key"]) == ("run of opened", "opened")
    assert record.info.experiment_id == registry.experiment("runs") == registry.client.get_run(other).info.experiment_id


def test_a_long_parameter_is_truncated(registry: Registry):
    """6,000 characters of 7,000."""
    run = registry.client.get_run(_run(registry, "long", config="x" * 6000 + "y" * 1000))
    assert run.data.params == {"config": "x" * 6000}


def test_an_experiment_is_created_once_below_the_artifact_root(registry: Registry, tmp_path: Path):
    """Below the artifact root under its name; without a root it is MLflow's own place."""
    made = registry.experiment("made once")
    assert registry.experiment("made once") == made
    assert registry.client.get_experiment(made).artifact_location.endswith("/artifacts/made once")
    rootless = Registry(f"sqlite:///{tmp_path}/mlflow.db")
    rootless.experiment("plain")
    location = rootless.client.get_experiment_by_name("plain").artifact_location
    assert "None" not in location


def test_metrics_have_one_value_an_iteration(registry: Registry):
    """Steps from 0, of each series, at the time of now; 1,100 values in all of 2 series of 550."""
    run = _run(registry, "metrics")
    before = int(time.time() * 1000)
    series = {"reward": [k / 2 for k in range(550)], "loss": [float(-k) for k in range(550)]}
    registry.log_metrics(run, series)
    after = int(time.time() * 1000)
    for name, values in series.items():
        history = sorted(registry.client.get_metric_history(run, name), key=lambda metric: metric.step)
        assert [(metric.step, metric.value) for metric in history] == list(enumerate(values))
        assert all(before <= metric.timestamp <= after for metric in history)


def test_metrics_that_a_repeated_run_logs_again_are_there_once(registry: Registry):
    """A stage was computed again, and took another time: its seconds are logged, and its newest ones are shown."""
    run = _run(registry, "repeated")
    for seconds in (3.0, 2.0):
        registry.log_metrics(run, {"reward": [0.5, None, 1.0, None], "seconds": [1.0, seconds], "loss": [None]})
    history = {name: registry.client.get_metric_history(run, name) for name in ("reward", "seconds", "loss")}
    assert {name: len(points) for name, points in history.items()} == {"reward": 2, "seconds": 4, "loss": 0}
    assert registry.client.get_run(run).data.metrics == {"reward": 1.0, "seconds": 2.0}


def test_files_and_folders_are_attached_under_their_names(registry: Registry, tmp_path: Path):
    """A file at the top, a folder with what is in it."""
    (tmp_path / "report.json").write_text("{}")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.html").write_text("<p>")
    run = _run(registry, "files")
    registry.log_files(run, [tmp_path / "report.json", tmp_path / "docs"])
    attached = {file.path for file in registry.client.list_artifacts(run)}
    assert attached == {"report.json", "docs"}
    assert [file.path for file in registry.client.list_artifacts(run, "docs")] == ["docs/index.html"]


@pytest.mark.parametrize("status", ["FINISHED", "FAILED"])
def test_a_run_ends_with_its_status(registry: Registry, status: str):
    """Running until then."""
    run = _run(registry, f"ends {status}")
    assert registry.client.get_run(run).info.status == "RUNNING"
    registry.close_run(run, status)
    assert registry.client.get_run(run).info.status == status


def test_a_version_without_a_run_has_no_provenance(registry: Registry, tmp_path: Path):
    """A model that something else has logged without our metadata."""
    import mlflow

    class Echo(mlflow.pyfunc.PythonModel):
        def predict(self, context: object, model_input: list[str]) -> list[str]:
            return model_input

    mlflow.set_tracking_uri(registry.tracking_uri)
    mlflow.pyfunc.save_model(tmp_path / "echo", python_model=Echo(), pip_requirements=[])
    registry.client.create_registered_model("echo")
    registry.client.create_model_version("echo", source=(tmp_path / "echo").as_uri())
    with pytest.raises(SignatureError) as unsigned:
        registry.resolve("models:/echo/1")
    assert str(unsigned.value) == (
        "models:/echo/1 is not signed, so nothing in it is trusted. `grpo admit models:/echo/1 --reason WHY` shows "
        "what is in it, and signs it"
    )
    version = ModelVersion(name="echo", version=1, run_id="", source="", tags={})
    with pytest.raises(AddressError) as refusal:
        registry.provenance(version)
    assert str(refusal.value) == (
        "models:/echo/1 has no provenance, because no run of this pipeline registered it. To get a version with one, "
        "train with this address as policy.model"
    )
    with pytest.raises(
        AddressError, match="models:/echo/1 has no tag 'checkpoint_uri', because no run of this pipeline"
    ):
        _ = version.checkpoint


def test_checkpoints_of_versions_are_their_own_and_those_they_were_evaluated_against(
    registry: Registry, tmp_path: Path
):
    """Of one store, each once, sorted; those of another store and of versions without a checkpoint are not its."""
    store, other = ArtifactStore(str(tmp_path / "here")), ArtifactStore(str(tmp_path / "here-too"))

    def put(name: str, place: ArtifactStore, **tags: str) -> None:
        put_version(
            registry, "kept", name, against="x",
            checkpoint_uri=f"{place.uri}/checkpoint/{name}", checkpoint_sha256=name, **tags,
        )  # fmt: skip

    put("b", store, champion_uri=f"{store.uri}/checkpoint/a", champion_sha256="a")
    put("c", store, champion_uri=f"{store.uri}/checkpoint/b", champion_sha256="b")
    put("d", other, champion_uri=f"{other.uri}/checkpoint/d0", champion_sha256="d0")
    registry.client.create_model_version("kept", source="file:///nowhere", tags={"checkpoint_uri": f"{store.uri}/e"})
    expected = [Artifact(uri=f"{store.uri}/checkpoint/{name}", sha256=name, kind="checkpoint") for name in "abc"]
    assert registry.checkpoints(str(tmp_path / "here")) == expected
    assert registry.checkpoints(str(tmp_path / "empty")) == []


def test_all_versions_are_listed_from_the_first_to_the_last(registry: Registry):
    """Twelve: the tenth is behind the ninth and not behind the first."""
    for number in range(12):
        put_version(registry, "listed", f"p{number}", against="x")
    versions = registry.versions("listed")
    assert [version.version for version in versions] == list(range(1, 13))
    assert [version.tags["policy"] for version in versions] == [f"p{number}" for number in range(12)]
    assert {(version.name, version.run_id) for version in versions} == {("listed", versions[0].run_id)}


def test_a_version_has_the_names_that_point_at_it(registry: Registry):
    """Sorted; those of other versions are not its."""
    for name in ("a", "b"):
        put_version(registry, "named", name, against="x")
    registry.promotions("named").promote(1, reason="gates", by=ANNA)
    registry.client.set_registered_model_alias("named", "blue", "1")
    registry.client.set_registered_model_alias("named", "red", "2")
    first, second = (registry.resolve(f"models:/named/{number}") for number in (1, 2))
    assert (registry.aliases(first), registry.aliases(second)) == (["blue", "champion"], ["red"])


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("models:/desk", "is not the address of a model. Write models:/NAME@champion or models:/NAME/3"),
        ("models:/desk/x", "is not the address of a model. Write models:/NAME@champion or models:/NAME/3"),
        ("models:/absent/3", "no model at models:/absent/3 in the registry sqlite:///"),
        ("models:/absent@champion", "no model at models:/absent@champion in the registry sqlite:///"),
    ],
)
def test_an_invalid_address_is_distinguished_from_a_missing_model(registry: Registry, address: str, reason: str):
    """The error and the remedy."""
    with pytest.raises(AddressError) as refusal:
        registry.resolve(address)
    assert reason in str(refusal.value)


def test_a_deleted_experiment_is_refused_with_its_remedy(registry: Registry):
    """MLflow finds it and takes no run; restored it is used again, and one that is not there is None."""
    number = registry.experiment("binned")
    registry.client.delete_experiment(number)
    remedy = f"experiment binned was deleted in MLflow.*restore --experiment-id {number}, or set registry.experiment"
    for call in (registry.experiment, registry.known_experiment):
        with pytest.raises(RegistryError, match=remedy):
            call("binned")
    registry.client.restore_experiment(number)
    assert registry.experiment("binned") == number
    assert registry.known_experiment("never made") is None
