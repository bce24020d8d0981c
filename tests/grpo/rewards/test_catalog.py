from __future__ import annotations

import sys
from pathlib import Path

import pytest

from grpo.config.pipeline import load_config
from grpo.config.rewards import REWARD_NAMES, RewardComponent
from grpo.errors import ConfigError
from grpo.rewards.catalog import REWARDS, make_composite_reward, make_named_reward
from tests.grpo.rewards.scoring import scored
from tests.places import ROOT

QUICKSTART = ROOT / "data" / "configs" / "quickstart.yaml"
PLUGIN = """
from grpo.rewards import RewardFunction, RewardResult

class ShoutReward(RewardFunction):
    name = "shout"
    async def compute_reward(self, turns, context):
        return RewardResult(score=float(turns[-1].content.isupper()))

no_class = 3
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with two entry points, as an installer leaves it on sys.path."""
    (tmp_path / "loud_rewards.py").write_text(PLUGIN)
    info = tmp_path / "loud_rewards-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loud-rewards\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[grpo.rewards]\nshout = loud_rewards:ShoutReward\nbroken = loud_rewards:no_class\n"
        "constant = loud_rewards:ShoutReward\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "loud_rewards", raising=False)


def test_the_config_knows_the_rewards_of_the_catalog():
    """By name, all of them."""
    assert set(REWARD_NAMES) == set(REWARDS)


def test_an_unknown_reward_is_refused_with_the_known_ones():
    """In a config, with its place, and by name."""
    with pytest.raises(ConfigError, match=r"reward\.0\.kind: .*reward kindness is unknown\. Known are .*helpfulness"):
        load_config(QUICKSTART, ("reward.0.kind=kindness",))
    with pytest.raises(ConfigError, match=r"kindness is unknown\. Known are"):
        make_named_reward("kindness")


@pytest.mark.usefixtures("plugin")
def test_a_plugin_is_found_by_its_entry_point():
    """Named in a config like any other; one of this package's names stays this package's."""
    reward = make_composite_reward([RewardComponent(kind="shout", weight=1.0)])
    assert (scored(reward, "Hi", "HELLO").score, scored(reward, "Hi", "hello").score) == (1.0, 0.0)
    assert type(make_named_reward("constant")) is REWARDS["constant"]


@pytest.mark.usefixtures("plugin")
def test_a_plugin_that_is_not_a_reward_is_refused():
    """With what it points at."""
    with pytest.raises(ConfigError, match=r"loud_rewards:no_class is int\. Name a RewardFunction or a function"):
        make_named_reward("broken")


def test_a_floor_in_the_config_vetoes():
    """variety .5 is below .6: 0, and conciseness makes up for nothing."""
    reward = make_composite_reward(
        [RewardComponent(kind="variety", weight=0.2, floor=0.6), RewardComponent(kind="conciseness", weight=0.8)]
    )
    assert scored(reward, "Hi", "no no no yes").score == 0.0
    assert scored(reward, "Hi", "no one said yes").score == 1.0


def test_an_unknown_option_is_refused():
    """A misspelt option names the reward."""
    with pytest.raises(ConfigError, match=r"reward conciseness does not take options .*'taget'"):
        make_composite_reward([RewardComponent(kind="conciseness", weight=1, options={"taget": 3})])


def test_one_reward_twice_is_refused():
    """Two weights for one thing are a mistake."""
    with pytest.raises(ConfigError, match="twice"):
        make_composite_reward([RewardComponent(kind="checks", weight=0.3)] * 2)
