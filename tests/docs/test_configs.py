"""Every config of README, docs and data/configs that claims to train is trained: one iteration on a few scenarios.

Where a config names a model that is not here, the tiny desk model stands in for it, and a scripted server for a judge.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo.artifacts import local_path
from grpo.config.loading import load_settings
from grpo.config.pipeline import PipelineConfig, load_config
from grpo.config.tuning import TuneConfig
from grpo.errors import NoLearningSignal
from grpo.evaluation.report import read_report
from tests.command_lines import pages
from tests.model_server import Model, judges
from tests.places import DESK_MODEL, PUBLISHED, ROOT

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]

CONFIGS = ROOT / "data" / "configs"
SHORT = (
    *("training.iterations=1", "rollout.scenarios=4", "rollout.group_size=4", "rollout.concurrency=16"),
    *("rollout.max_context=512", "evaluation.samples=1", "evaluation.resamples=100", "scenarios.limit=6"),
)
"""One iteration of sixteen episodes, and as many held out as a gate needs."""
DEMONSTRATIONS = {"family_relationships.yaml": 150, "family_relationships_smollm2.yaml": 64}
"""Generated demonstrations of each level, 14 by default. Fewer one-turn answers leave no success in 16 episodes."""
EXTRAS = {"treasure_hunter.yaml": "textworld"}
"""Packages that configs need and that are not installed with the extra `dev`, because of their licence. The 14
demonstrations of such a config may leave no success in 16 episodes."""
OTHER_KINDS = {"retrain.yaml": "RetrainConfig: tests/e2e/test_retrain.py runs it", "tune.yaml": "TuneConfig: see below"}
OUTSIDE = ("banking77.yaml", "banking77_teams.yaml", "multidogo.yaml", "published.yaml", "tau2_retail.yaml")
"""Configs of published data, which lie beside the project."""
HEAVY = ("bf16.yaml", "dpo.yaml", "treasure_hunter.yaml", "trl.yaml", "trpo.yaml", *OUTSIDE)
"""Configs that take several processes, another trainer, large data or thousands of generated games: run with the
end-to-end tests."""
PAGE_CONFIGS = {
    "README.md": ("billing",),
    "docs/logs.md": ("logs",),
    "docs/own.md": ("shop_desk", "words", "vowels"),
}


def _shipped() -> list[Any]:
    names = [path.name for path in sorted(CONFIGS.glob("*.yaml")) if path.name not in OTHER_KINDS]
    return [pytest.param(name, marks=pytest.mark.e2e if name in HEAVY else ()) for name in names]


def _train(config: PipelineConfig, home: Path, *, learns: bool) -> None:
    """Train, and look for what a run leaves. Only if the model learns does it have to find something to learn from."""
    from grpo_flows.train import train

    try:
        result = train(config)
    except NoLearningSignal:
        assert not learns, "the model knows the task, so that its rewards differ"
        return
    assert result.decision.verdict in ("promote", "refuse")
    assert not any(check.meaning.startswith("no evidence") for check in result.decision.checks), result.decision
    assert len(read_report(home / config.name / "report.json").iterations) == 1


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifacts of all configs, as in a project: what two of them have in common is computed once."""
    return tmp_path_factory.mktemp("configs") / "store"


@pytest.mark.parametrize("name", _shipped())
def test_a_shipped_config_trains(name: str, store: Path, tmp_path: Path, home: Path):
    """To a decision of its gates, each of which has its evidence."""
    if name in OUTSIDE and not PUBLISHED.is_dir():
        pytest.skip(f"no published data in {PUBLISHED}")
    if name in EXTRAS:
        pytest.importorskip(EXTRAS[name], reason=f"the extra {EXTRAS[name]} is not installed")
    config = load_config(CONFIGS / name)
    overrides = [*SHORT, f"store={store}", f"name=shipped-{config.name}"]
    stand_in = not Path(config.policy.model).exists() or not config.policy.model.startswith(str(ROOT))
    if stand_in:
        overrides += [f"policy.model={DESK_MODEL}", "policy.chat_template=null"]  # its own template
    if config.sft is not None and config.sft.demonstrations.kind == "python":
        overrides.append(f"sft.demonstrations.options.each={DEMONSTRATIONS.get(name, 14)}")
    elif config.sft is not None:
        demonstrations = local_path(config.sft.demonstrations.path)
        few = tmp_path / "demonstrations.jsonl"
        few.write_text("".join(demonstrations.read_text(encoding="utf-8").splitlines(keepends=True)[:14]))
        overrides.append(f"sft.demonstrations.path={few}")
    if config.rollout.informative_groups is not None:
        overrides.append("rollout.informative_groups=2")
    if name == "tau2_retail.yaml":  # policy text and tools: see its first lines
        reads_more = _with_positions(8192, tmp_path / "reads_more")
        overrides += [f"policy.model={reads_more}", "rollout.max_context=8192", "environment.max_turns=2"]
    knows_the_task = not stand_in or config.environment.kind == "support_desk"
    _train(load_config(CONFIGS / name, tuple(overrides)), home, learns=knows_the_task and name not in EXTRAS)


def _with_positions(positions: int, folder: Path) -> Path:
    """The desk model with another context; rotary positions need no weights."""
    shutil.copytree(DESK_MODEL, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": positions}))
    return folder


@pytest.fixture
def judge() -> Iterator[Model]:
    """A judge that likes short replies."""
    model = Model()
    model.answers = [judges(lambda said, place: max(0.0, 1 - len(said) / 200))]
    yield model
    model.close()


def test_every_config_on_a_page_is_trained_here():
    """A block of YAML with a name, scenarios and a policy is a run."""
    found: dict[str, tuple[str, ...]] = {}
    for page in pages():
        blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        names = [
            document["name"]
            for document in map(yaml.safe_load, blocks)
            if isinstance(document, dict) and {"name", "scenarios", "policy"} <= document.keys()
        ]
        if names:
            found[str(page.relative_to(ROOT))] = tuple(names)
    assert found == PAGE_CONFIGS


def _page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_config_of_the_readme_trains_to_a_decision_on_the_reward(tmp_path: Path, home: Path, judge: Model):
    """Its environment verifies nothing: the gate that names no metric compares the judge's reward."""
    (text,) = re.findall(r"```yaml\n(.*?)```", _page("README.md"), re.DOTALL)
    (tmp_path / "billing.yaml").write_text(text.replace("openai+https://judge.example/v1", f"openai+{judge.url}"))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "my-chat-model").symlink_to(DESK_MODEL)
    users = [
        {
            "id": f"b{n}",
            "user_responses": [f"Why is bill {n * 7919} so high?"],
            "split": "train" if n % 3 else "heldout",
        }
        for n in range(18)
    ]
    (tmp_path / "billing.jsonl").write_text("".join(json.dumps(user) + "\n" for user in users))
    own = (f"store={tmp_path / 'store'}", f"reward.0.options.folder={tmp_path / 'judge'}")
    _train(load_config(tmp_path / "billing.yaml", (*SHORT, *own)), home, learns=True)
    evaluation = read_report(home / "billing" / "report.json").evaluation
    assert evaluation is not None
    assert evaluation.metric == "reward"


def test_the_config_of_the_logs_page_trains_to_a_decision_on_the_reward(tmp_path: Path, home: Path):
    """A log does not show whether its calls were right, so the gate compares the reward instead of the success rate."""
    for name, content in re.findall(
        r"^`([\w.]+)`\n\n```\w+\n(.*?)```", _page("docs/logs.md"), re.DOTALL | re.MULTILINE
    ):
        (tmp_path / name).write_text(content, encoding="utf-8")
    config = load_config(tmp_path / "logs.yaml", (*SHORT, f"store={tmp_path / 'store'}"))
    _train(config, home, learns=True)
    evaluation = read_report(home / "logs" / "report.json").evaluation
    assert evaluation is not None
    assert evaluation.metric == "reward"


@pytest.mark.parametrize("name", PAGE_CONFIGS["docs/own.md"])
def test_a_config_of_the_page_on_parts_of_one_s_own_trains(name: str, tmp_path: Path, home: Path):
    """With the modules of the page beside it."""
    if name == "vowels" and importlib.util.find_spec("verifiers") is None:
        pytest.skip("verifiers is not installed; pip install 'grpo-agent-framework[verifiers]'")
    for file, content in re.findall(r"```\w+\n# (\S+)\n(.*?)```", _page("docs/own.md"), flags=re.DOTALL):
        (tmp_path / file).write_text(content, encoding="utf-8")
    overrides = ("training.iterations=1", f"store={tmp_path / 'store'}", f"name=page-{name}")
    _train(load_config(tmp_path / f"{name}.yaml", overrides), home, learns=True)


@pytest.mark.e2e
def test_the_shipped_study_trains_a_trial(tmp_path: Path):
    """And writes the best config, which is a run again."""
    from grpo_flows.tune import tune

    small = ("n_trials=1", "iterations=1", "parallel=1", "intermediate_evals=1")
    study = load_settings(CONFIGS / "tune.yaml", TuneConfig, (*small, f"storage=sqlite:///{tmp_path / 'study.db'}"))
    base = load_config(CONFIGS / "quickstart.yaml", (*SHORT, f"store={tmp_path / 'store'}", "scenarios.limit=24"))
    tuned = tune(study.model_copy(update={"base": base}))
    assert load_config(tuned.config).training.learning_rate > 0
