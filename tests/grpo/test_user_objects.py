"""Objects of the user's own code: import, options, identity."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import yaml

from grpo.agents.catalog import make_agent
from grpo.config.environments import PythonEnvironmentSettings
from grpo.config.pipeline import load_config
from grpo.environments.catalog import make_environment
from grpo.environments.environment import Environment
from grpo.errors import ConfigError
from grpo.identity import user_code
from grpo.identity.cache_identity import run_settings
from grpo.identity.code import executed_code, external_digests
from grpo.rewards.catalog import make_composite_reward, make_named_reward
from grpo.user_objects import load_object, make_object
from tests.grpo.rewards.scoring import scored

ENVIRONMENT = '''
from __future__ import annotations
from typing import TYPE_CHECKING

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.environments.task import TaskEnvironment
from bakery_prices import PRICES

if TYPE_CHECKING:
    from nowhere import Oven

def price_of(state: dict, item: str) -> tuple[dict, float]:
    """Price of an item."""
    return state, PRICES[item]

class BakeryEnvironment(TaskEnvironment):
    def __init__(self, stock: int = 40, *, names: tuple[str, ...] = (), oven: Oven | None = None):
        super().__init__(functions=[price_of], system_prompt=f"{stock} loaves of {', '.join(names)}")

class Baker(MultiTurnAgent):
    def __init__(self, config, tone: str = "warm"):
        super().__init__(config)
        self.tone = tone

def small(stock: int) -> BakeryEnvironment:
    return BakeryEnvironment(stock)

def wrong():
    return 3

def broken():
    raise OSError("no oven")

NUMBER = 3
'''
REWARDS = """
from grpo.rewards import RewardFunction, RewardResult, reward_function

def loud(turns):
    return float(turns[-1].content.isupper())

@reward_function()
def quiet(turns, context):
    return float(turns[-1].content.islower())

class LengthReward(RewardFunction):
    probed = False

    def __init__(self, target: int):
        super().__init__()
        self.target = target

    async def compute_reward(self, turns, context):
        return RewardResult(score=float(len(turns[-1].content) == self.target))

class Plain:
    pass

class Checks:
    @staticmethod
    def polite(turns):
        return 0.25
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with modules of a bakery and a config that names them."""
    (tmp_path / "bakery.py").write_text(ENVIRONMENT)
    (tmp_path / "bakery_prices.py").write_text("PRICES = {'bun': 0.5}\n")
    (tmp_path / "bakery_rewards.py").write_text(REWARDS)
    (tmp_path / "scenarios.jsonl").write_text("")
    document = {
        "name": "bakery",
        "scenarios": {"sources": [{"kind": "jsonl", "path": "scenarios.jsonl"}]},
        "policy": {"model": "none"},
        "environment": {"kind": "python", "object": "bakery:BakeryEnvironment", "options": {"stock": 7}},
        "reward": [
            {"kind": "python", "object": "bakery_rewards:LengthReward", "weight": 0.5, "options": {"target": 5}},
            {"kind": "python", "object": "bakery_rewards:loud", "weight": 0.5, "floor": 0.5},
        ],
        "registry": {"model_name": "bakery"},
    }
    (tmp_path / "bakery.yaml").write_text(yaml.safe_dump(document))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    for name in [name for name in sys.modules if name.startswith("bakery")]:
        monkeypatch.delitem(sys.modules, name)
    user_code.user_code_digests.cache_clear()
    return tmp_path


def environment(name: str, **options: object) -> Environment:
    return make_environment(PythonEnvironmentSettings(kind="python", object=f"bakery:{name}", options=options))


def test_a_config_names_modules_beside_it(folder: Path):
    """They can be imported here and in processes that are started; the folder is not part of the run's identity."""
    config = load_config(folder / "bakery.yaml")
    assert config.import_from == str(folder)
    assert os.environ["PYTHONPATH"] == str(folder)
    made = make_environment(config.environment)
    assert (made.system_prompt, made.tools[0].name) == ("7 loaves of ", "price_of")
    assert "import_from" not in run_settings(config)
    reward = make_composite_reward(config.reward)
    assert list(reward.weights.items()) == [("length", 0.5), ("loud", 0.5)]
    assert [scored(reward, "Hi", text).score for text in ("HELLO", "HELLO!", "hello")] == [1.0, 0.5, 0.0]


def test_a_function_of_a_class_is_named_with_a_dot(folder: Path):
    """A static method is a reward as any function is, and a misspelt one is named."""
    load_config(folder / "bakery.yaml")
    assert scored(make_named_reward("bakery_rewards:Checks.polite"), "Hi", "hello").score == 0.25
    with pytest.raises(ConfigError, match=r"module bakery_rewards has no Checks\.kind\. It has loud, "):
        make_named_reward("bakery_rewards:Checks.kind")


def test_a_folder_without_the_module_is_not_imported_from(folder: Path):
    """An installed module needs no folder."""
    document = yaml.safe_load((folder / "bakery.yaml").read_text())
    document["environment"] = {"kind": "conversation"}
    document["reward"] = [{"kind": "python", "object": "grpo.rewards.task:ConstantReward", "weight": 1}]
    (folder / "other.yaml").write_text(yaml.safe_dump(document))
    assert load_config(folder / "other.yaml").import_from is None


def test_all_modules_are_part_of_the_identity(folder: Path):
    """The environment's own, those that it imports, and the rewards'."""
    config = load_config(folder / "bakery.yaml")
    assert executed_code([config.environment]) is not None
    assert executed_code(config.reward) is not None
    before = external_digests([config])
    assert {name.partition(", ")[2] for name in before} == {
        "module bakery", "module bakery_prices", "module bakery_rewards"
    }  # fmt: skip
    (folder / "bakery_prices.py").write_text("PRICES = {'bun': 0.6}\n")
    user_code.user_code_digests.cache_clear()
    after = external_digests([config])
    assert [name for name in before if before[name] != after[name]] == [
        "bakery:BakeryEnvironment, module bakery_prices"
    ]


def test_options_are_checked_by_the_signature(folder: Path):
    """A number in a text is one, an annotation for type checkers alone is none, a list becomes a tuple."""
    load_config(folder / "bakery.yaml")
    assert environment("BakeryEnvironment", stock="12").system_prompt.startswith("12 loaves")
    assert environment("small", stock=1).system_prompt.startswith("1 loaves")
    with pytest.raises(ConfigError, match=r"bakery:small: option stock: Input should be a valid integer.*takes stock"):
        environment("small", stock="many")
    with pytest.raises(ConfigError, match=r"bakery:small: option stock: Field required\. It takes stock"):
        environment("small")
    with pytest.raises(ConfigError, match=r"BakeryEnvironment has no option 'stok'\. It takes stock, names, oven"):
        environment("BakeryEnvironment", stok=3)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("wrong", "bakery:wrong makes int. Derive it from Environment"),
        ("broken", "bakery:broken cannot be made with options {}: OSError: no oven"),
        ("NUMBER", "bakery:NUMBER is int. Name a class derived from Environment"),
        ("Bakery", "module bakery has no Bakery. It has price_of, BakeryEnvironment, Baker"),
    ],
)
def test_another_object_is_refused(folder: Path, name: str, reason: str):
    """With its name and the remedy."""
    load_config(folder / "bakery.yaml")
    with pytest.raises(ConfigError, match=reason):
        environment(name)


def test_a_module_that_cannot_be_imported_is_refused(folder: Path):
    """Missing, with a missing module inside, and with an error of its own."""
    load_config(folder / "bakery.yaml")
    (folder / "bakery_late.py").write_text("import bakery_oven\n")
    (folder / "bakery_torn.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match=r"module bakery_none cannot be imported.*Put it into the config's folder"):
        load_object("bakery_none:x")
    with pytest.raises(
        ConfigError, match=r"module bakery_late .*No module named 'bakery_oven' \(bakery_late.py:1, .*\. Correct it"
    ):
        load_object("bakery_late:x")
    with pytest.raises(ConfigError, match=r"bakery_torn cannot be imported \(ZeroDivisionError"):
        load_object("bakery_torn:x")


def test_functions_and_decorated_functions_are_rewards(folder: Path):
    """By name and weight; they take no options, and a class that is not a reward is refused."""
    load_config(folder / "bakery.yaml")
    quiet = make_named_reward("bakery_rewards:quiet", weight=0.25)
    assert (quiet.name, quiet.weight, scored(quiet, "Hi", "low").score) == ("quiet", 0.25, 1.0)
    assert load_object("bakery_rewards:quiet").weight == 1.0
    with pytest.raises(ConfigError, match="bakery_rewards:loud takes no options"):
        make_named_reward("bakery_rewards:loud", volume=3)
    with pytest.raises(ConfigError, match=r"bakery_rewards:Plain makes Plain\. Derive it from RewardFunction"):
        make_named_reward("bakery_rewards:Plain")
    with pytest.raises(ConfigError, match="kind python needs object: module:name"):
        load_config(folder / "bakery.yaml", ("reward.0.object=null",))


def test_an_agent_of_ones_own_has_the_settings_of_any_agent(folder: Path):
    """Called with its config and its options; its module is part of the identity."""
    load_config(folder / "bakery.yaml")
    named = ("agent.kind=python", "agent.object=bakery:Baker", "agent.options={tone: dry}", "agent.system_prompt=Bake.")
    config = load_config(folder / "bakery.yaml", named)
    agent = make_agent(config.agent)
    assert (type(agent).__name__, getattr(agent, "tone", ""), agent.config.system_prompt) == ("Baker", "dry", "Bake.")
    assert "bakery:Baker, module bakery" in external_digests([config])
    with pytest.raises(ConfigError, match=r"bakery:Baker has no option 'tune'\. It takes tone"):
        make_agent(load_config(folder / "bakery.yaml", (*named, "agent.options={tune: dry}")).agent)


def test_an_entry_point_names_an_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of an installed package, in the group of its kind; an unknown one is refused with the known ones."""
    (tmp_path / "bakery_installed.py").write_text("def oven():\n    return {'loaves': 3}\n")
    info = tmp_path / "bakery-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bakery\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[grpo.environments]\nbakery = bakery_installed:oven\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = PythonEnvironmentSettings(kind="python", object="bakery")
    assert settings.reference == "bakery_installed:oven"
    assert make_object(settings.reference, {}, dict) == {"loaves": 3}
    with pytest.raises(ConfigError, match=r"'kiosk' is not of the form module:name.*known entry points: bakery"):
        _ = PythonEnvironmentSettings(kind="python", object="kiosk").reference
