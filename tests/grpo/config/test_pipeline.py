from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from grpo.config.pipeline import PipelineConfig, load_config
from grpo.config.training import TrainingSettings
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
        ("registry", {"tags": {"admitted": "by me"}}, r"registry\.tags: rename the tag admitted, because a run"),
        ("registry", {"tags": {"signature": "x"}}, r"registry\.tags: rename the tag signature, because a run"),
        ("registry", {"tags": {"started_from": "mine"}}, r"registry\.tags: rename the tag started_from, because a run"),
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


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"training": {"importance_sampling_cap": None}}, "Set training.importance_sampling_cap, for example 2.0"),
        ({"rollout": {"temperature": 2.5}}, "samples at temperatures up to 2, not at 2.5"),
        ({"evaluation": {"temperature": 3.0}}, "samples at temperatures up to 2, not at 3"),
        (
            {"policy": {"quantization": "nf4"}, "training": {"importance_sampling_cap": 2.0, "lora": {"r": 4}}},
            "rounds weights of policy.quantization nf4 again",
        ),
    ],
)
def test_a_run_that_vllm_cannot_play_is_refused(tmp_path: Path, sections: dict[str, object], problem: str):
    """On reading the config; adapters on whole weights are accepted."""
    playable = changed(
        short_run(tmp_path), rollout={"backend": "vllm"}, training={"importance_sampling_cap": 2.0, "lora": {"r": 4}}
    )
    assert PipelineConfig.model_validate(playable).training.lora is not None
    with pytest.raises(ValidationError, match=problem):
        PipelineConfig.model_validate(changed(playable, **sections))


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"rollout": {"servers": []}}, r"needs servers, for example {count: 2} or \[http://10.0.0.7:8000\]"),
        (
            {"rollout": {"servers": {"count": 0}}},
            r"servers.started.count\n  Input should be greater than or equal to 1",
        ),
        ({"rollout": {"servers": {"count": 65}}}, "less than or equal to 64"),
        ({"rollout": {"servers": {"threads": 2}}}, r"servers.started.count\n  Field required"),
        (
            {"rollout": {"servers": {"count": 3, "devices": [0, 1]}}},
            "devices names 2 devices for 3 servers. Name one for each server",
        ),
        (
            {"rollout": {"servers": {"count": 2}, "runner": "dask", "dask_address": "tcp://10.0.0.7:8786"}},
            "answer only on the machine of the run, and shards of the cluster tcp://10.0.0.7:8786 may run on others",
        ),
        (
            {"rollout": {"servers": {"count": 2}}, "compute": {"gpu_stages": {"stages": ["rollout"]}}},
            "answer only on the machine of the run, and rollouts go to deployment stage/gpu",
        ),
        (
            {"rollout": {"backend": "transformers", "servers": {"count": 2}}},
            "servers has no effect with backend transformers. Leave it out, or set backend to servers",
        ),
        ({"rollout": {"servers": ["http://a:8000", "http://a:8000/"]}}, "names a server twice"),
        ({"rollout": {"servers": ["http://key@a:8000"]}}, r"of the form http\(s\)://host\[:port\], without a key"),
        ({"rollout": {"servers": ["a:8000"]}}, r"of the form http\(s\)://host"),
        (
            {"rollout": {"backend": "transformers"}},
            "servers has no effect with backend transformers. Leave it out, or set backend to servers",
        ),
        ({"policy": {"quantization": "nf4"}, "training": {"lora": {"r": 4}}}, "not from policy.quantization nf4"),
        (
            {"policy": {"dtype": "bfloat16"}, "training": {"importance_sampling_cap": 2.0}},
            "computes in float32, not in policy.dtype bfloat16",
        ),
    ],
)
def test_a_run_that_servers_cannot_play_is_refused(tmp_path: Path, sections: dict[str, object], problem: str):
    """On reading the config."""
    playable = changed(short_run(tmp_path), rollout={"backend": "servers", "servers": ["http://a:8000/", "http://b"]})
    assert PipelineConfig.model_validate(playable).rollout.servers == ("http://a:8000", "http://b")
    with pytest.raises(ValidationError, match=problem):
        PipelineConfig.model_validate(changed(playable, **sections))


def test_resamples_that_no_machine_gets_through_are_refused(tmp_path: Path):
    """Before any of them is drawn: a million take seconds, 10¹² would take weeks and all of the memory."""
    document = changed(short_run(tmp_path), evaluation={"resamples": 10**12})
    with pytest.raises(ValidationError, match="less than or equal to 1000000"):
        PipelineConfig.model_validate(document)


@pytest.mark.parametrize("temperature", [0, 9e-6, 5e-324, float("nan"), float("inf")])
@pytest.mark.parametrize("section", ["rollout", "evaluation"])
def test_a_temperature_that_no_distribution_is_sampled_at_is_refused(tmp_path: Path, section: str, temperature: float):
    """A rollout without spread has no advantages; the least that is taken is 1e-5."""
    config = changed(short_run(tmp_path), gates=[{"kind": "improvement"}])
    assert PipelineConfig.model_validate(changed(config, **{section: {"temperature": 1e-5}}))
    with pytest.raises(ValidationError, match=f"{section}.temperature"):
        PipelineConfig.model_validate(changed(config, **{section: {"temperature": temperature}}))


TASKSET = {"kind": "verifiers", "id": "words", "args": {"count": 3}}


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"environment": {**TASKSET, "args": {}}}, "needs the environment of the same id and args"),
        ({"environment": {"kind": "conversation"}}, "same id and args, and environment is conversation"),
        ({"scenarios": {"sources": [{"kind": "jsonl", "path": "x.jsonl"}]}}, "runs the tasks of its own taskset"),
    ],
)
def test_a_taskset_is_played_with_its_own_scenarios(tmp_path: Path, sections: dict[str, object], problem: str):
    """Source and environment name the same taskset, and its module is among the user's objects."""
    document = short_run(tmp_path)
    playable = {**document, "environment": TASKSET, "scenarios": {"sources": [TASKSET]}}
    assert "words:Taskset" in PipelineConfig.model_validate(playable).objects
    with pytest.raises(ValidationError, match=problem):
        PipelineConfig.model_validate({**playable, **sections})


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"training": {"engine": "trl"}}, "cannot be combined with training.engine trl"),
        ({"training": {"algorithm": "dpo", "beta": 0.1}}, "cannot be combined with training.algorithm dpo"),
        (
            {"compute": {"gpu_stages": {"stages": ["rollout"]}}},
            "cannot be combined with rollout in compute.gpu_stages.stages",
        ),
        ({"rollout": {"backend": "vllm"}}, "cannot be combined with backend vllm. Leave it out, or set mode to stages"),
        ({"rollout": {"shards": 2}}, "cannot be combined with shards 2. Leave it out, or set mode to stages"),
        ({"rollout": {"curriculum": {}}}, "cannot be combined with curriculum. Leave it out, or set mode to stages"),
        ({"rollout": {"trees": 2}}, "cannot be combined with trees. Leave it out, or set mode to stages"),
    ],
)
def test_a_continuous_rollout_refuses_what_it_cannot_be_combined_with(
    tmp_path: Path, sections: dict[str, dict[str, object]], problem: str
):
    """One sentence names the setting. An update on another work pool is possible, because the store has its weights."""
    rollout = {"mode": "continuous", "shards": 1}
    playable = short_run(tmp_path, rollout=rollout, training={"importance_sampling_cap": 2.0})
    PipelineConfig.model_validate({**playable, "compute": {"gpu_stages": {"stages": ["train"]}}})
    training: dict[str, object] = {} if "algorithm" in sections.get("training", {}) else {"importance_sampling_cap": 2}
    base = short_run(tmp_path, rollout=rollout, training=training)
    with pytest.raises(ValidationError, match=re.escape(problem)):
        PipelineConfig.model_validate(changed(base, **sections))


def test_nodes_without_a_common_folder_are_refused(tmp_path: Path):
    """Processes of an update read their parts of a checkpoint from the store, which must therefore be a folder."""
    document = changed(short_run(tmp_path), training={"nodes": 2})
    assert PipelineConfig.model_validate(document).training.workers == 2
    with pytest.raises(
        ValidationError, match=r"training\.nodes 2 needs a store that all nodes see as a folder.* s3://"
    ):
        PipelineConfig.model_validate({**document, "store": "s3://bucket/store"})


@pytest.mark.parametrize(
    ("training", "problem"),
    [
        ({"nodes": 2, "algorithm": "trpo"}, "trpo runs only in one process. Set processes and nodes to 1"),
        ({"nodes": 2, "algorithm": "ppo", "sharding": "sharded"}, "the critic of ppo needs whole models"),
    ],
)
def test_several_nodes_are_several_processes(training: dict[str, object], problem: str):
    """Several nodes refuse the settings that need one process, and accept the settings of several processes."""
    assert TrainingSettings(nodes=2, sharding="sharded", update_timeout_s=9.0).workers == 2
    with pytest.raises(ValidationError, match=problem):
        TrainingSettings.model_validate(training)


def test_sharded_weights_go_with_passes_in_bfloat16(tmp_path: Path):
    """Another setting that decides how the passes are made is refused together with it."""
    correction = {"importance_sampling_cap": 2.0}
    sharded = {**correction, "processes": 2, "sharding": "sharded"}
    playable = changed(short_run(tmp_path), policy={"dtype": "bfloat16"}, training=sharded)
    assert PipelineConfig.model_validate(playable).training.sharding == "sharded"
    with pytest.raises(ValidationError, match=r"policy\.dtype bfloat16 cannot be combined with precision bf16"):
        PipelineConfig.model_validate(changed(playable, training={"precision": "bf16"}))


def test_a_greedy_evaluation_is_refused_with_the_gate_of_the_kl(tmp_path: Path):
    """One other token counts thousands of nats there. The default gates include it; others may be listed."""
    greedy = changed(short_run(tmp_path), evaluation={"temperature": 1e-5})
    with pytest.raises(
        ValidationError, match=r"evaluation\.temperature 1e-05: the gate kl .* or list gates without kl"
    ):
        PipelineConfig.model_validate(greedy)
    assert PipelineConfig.model_validate(changed(greedy, gates=[{"kind": "improvement"}]))
    assert PipelineConfig.model_validate(changed(greedy, evaluation={"temperature": 0.1}))
