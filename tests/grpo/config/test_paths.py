from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from grpo.artifacts import local_path
from grpo.config.base import FOLDER, with_paths_from
from grpo.config.loading import load_settings
from grpo.config.pipeline import PipelineConfig, load_config
from grpo.config.retraining import RetrainConfig
from grpo.config.rewards import RewardComponent
from grpo.config.scenarios import ChatSource
from grpo.errors import ConfigError
from grpo.identity.cache_identity import run_settings
from tests.places import DESK_MODEL, DESK_SCENARIOS, ROOT

RUN = """
name: mine
scenarios: {sources: [{kind: jsonl, path: data/orders.jsonl}]}
policy: {model: MODEL}
environment: {kind: conversation}
reward: [{kind: conciseness, weight: 1}, {kind: neural, weight: 0, options: {model: learned}}]
sft: {demonstrations: {kind: jsonl, path: ../shared.jsonl}}
registry: {model_name: mine}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder `work/shop` with a config; the working folder is `work`."""
    folder = tmp_path / "work" / "shop"
    (folder / "model").mkdir(parents=True)
    (folder / "org" / "clerk").mkdir(parents=True)
    monkeypatch.chdir(folder.parent)
    return folder


def write(folder: Path, model: str = "model") -> Path:
    path = folder / "run.yaml"
    path.write_text(RUN.replace("MODEL", model))
    return path


def source_path(config: PipelineConfig) -> str:
    (source,) = config.scenarios.sources
    return str(getattr(source, "path", None))


def test_paths_count_from_the_folder_of_the_config(project: Path):
    """Below the working folder they are shown from there, elsewhere they are absolute."""
    config = load_config(Path("shop/run.yaml") if write(project) else project)
    assert source_path(config) == "shop/data/orders.jsonl"
    assert config.policy.model == "shop/model"
    assert config.reward[1].options == {"model": "shop/learned"}
    assert config.sft is not None
    assert config.sft.demonstrations.path == "shared.jsonl"
    assert Path(config.sft.demonstrations.path).resolve() == project.parent / "shared.jsonl"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("./model", "shop/model"),
        ("org/clerk", "shop/org/clerk"),  # a folder of that name wins
        ("org/other", "org/other"),  # a model on the hub
        ("org/other@v1", "org/other@v1"),
        ("models/a/b", "shop/models/a/b"),  # no model on the hub has two slashes
        ("models:/shop@champion", "models:/shop@champion"),
        ("s3://bucket/model/3fa1#3fa1", "s3://bucket/model/3fa1#3fa1"),
        ("grpo://models/desk_clerk", "grpo://models/desk_clerk"),
        (str(DESK_MODEL), str(DESK_MODEL)),
    ],
)
def test_the_address_of_a_model_is_a_path_where_it_can_be_one(project: Path, written: str, read: str):
    """Names on the hub, registered versions and objects in a store stay as they are."""
    assert load_config(write(project, written)).policy.model == read


def test_an_absolute_path_stays_so(project: Path):
    """Also below the working folder: it means the same for a worker elsewhere."""
    path = project / "data" / "x.jsonl"
    config = (write(project).read_text()).replace("data/orders.jsonl", str(path))
    (project / "run.yaml").write_text(config)
    assert source_path(load_config(project / "run.yaml")) == str(path)


@pytest.mark.parametrize("setting", ["store: ../artifacts", "import_from: ."])
def test_places_below_the_shipped_files_are_paths(setting: str):
    """They are written to or imported from, and stay paths."""
    path = ROOT / "data" / "configs" / "quickstart.yaml"
    name, _, value = setting.partition(": ")
    document = {**yaml.safe_load(path.read_text()), name: value}
    config = PipelineConfig.model_validate(document, context={FOLDER: path.parent})
    assert Path(getattr(config, name)).resolve() == (path.parent / value).resolve()


def test_a_path_on_the_command_line_counts_from_the_working_folder(project: Path):
    """As the shell completes it."""
    config = load_config(write(project), ("scenarios.sources.0.path=other.jsonl", "policy.model=./elsewhere"))
    assert (source_path(config), config.policy.model) == ("other.jsonl", "./elsewhere")


def test_overrides_of_a_retraining_count_from_a_config(project: Path):
    """They stand in a file, so that they mean the same from every folder."""
    write(project)
    (project / "retrain.yaml").write_text(
        "name: weekly\npipeline: run.yaml\noverrides: [policy.model=./elsewhere]\n"
        "conversations: [{kind: served, path: log}]\ncuration: {licences: [own]}\n"
    )
    config = load_settings(project / "retrain.yaml", RetrainConfig)
    assert getattr(config.conversations[0], "path", None) == "shop/log"
    assert config.load_pipeline().policy.model == "shop/elsewhere"


def test_a_config_that_is_written_elsewhere_names_the_same_files(project: Path):
    """Of paths below the working folder and of shipped files."""
    config = load_config(write(project))
    moved = with_paths_from(config, project / "runs")
    assert (source_path(moved), moved.policy.model) == ("../data/orders.jsonl", "../model")


def test_the_folder_of_a_learned_reward_is_named_from_where_a_config_is_written(project: Path):
    """Its option is a path; the option of the same name of another reward is not."""
    learned = RewardComponent(kind="neural", weight=0.5, options={"model": "shop/network", "lines": 3})
    other = RewardComponent(kind="ruler", weight=0.5, options={"model": "shop/network"})
    moved = with_paths_from(learned, project / "runs")
    assert (moved.options, with_paths_from(other, project / "runs")) == ({"model": "../network", "lines": 3}, other)


def test_where_a_file_lies_is_not_in_the_identity(project: Path):
    """Its content is; the model of a run is pinned apart."""
    config = load_config(write(project))
    elsewhere = load_config(write(project), ("scenarios.sources.0.path=other.jsonl",))
    assert run_settings(config) == run_settings(elsewhere)
    assert run_settings(config) != run_settings(load_config(write(project), ("seed=4",)))


def test_shipped_files_have_addresses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The same wherever the package is installed; one that does not ship is refused, and none is outside."""
    monkeypatch.chdir(tmp_path)
    config = load_config("grpo://configs/quickstart.yaml")
    assert load_config(Path("grpo://configs/quickstart.yaml")) == config
    assert local_path(source_path(config)) == DESK_SCENARIOS
    assert load_config(ROOT / "data" / "configs" / "quickstart.yaml") == config
    for address in ("grpo://models/missing", "grpo://../pyproject.toml"):
        with pytest.raises(ConfigError, match="does not ship with grpo"):
            local_path(address)


def test_an_optional_path_is_named_from_where_a_config_is_written(project: Path):
    """Its mark is inside of the annotation `LocalPath | None`."""
    source = ChatSource(kind="openai_messages", path="shop/results.jsonl", requests="shop/requests.jsonl")
    assert with_paths_from(source, project / "runs").requests == "../requests.jsonl"
