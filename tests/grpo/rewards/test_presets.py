from __future__ import annotations

import pytest

from grpo.errors import ConfigError
from grpo.rewards.catalog import REWARDS
from grpo.rewards.presets import create_customer_service_reward, create_domain_reward


def test_the_customer_service_preset_has_the_published_weights():
    """.35 .25 .20 .20; with expected replies .25 .25 .25 .10 .15"""
    manner = create_customer_service_reward(["I'll help you with that"])
    assert manner.weights == {
        "empathy": 0.25, "action": 0.25, "professionalism": 0.25, "conciseness": 0.1, "similarity": 0.15,
    }  # fmt: skip
    if "safety" not in REWARDS:
        pytest.skip("the catalog has no safety reward")
    weights = create_customer_service_reward().weights
    assert weights == {"helpfulness": 0.35, "safety": 0.25, "engagement": 0.2, "conciseness": 0.2}
    assert sum(weights.values()) == pytest.approx(1.0)


def test_a_domain_without_a_reward_is_refused():
    """With those that have one."""
    with pytest.raises(ConfigError, match=r"'plumbing' has no reward\. Use one of customer_service"):
        create_domain_reward("plumbing")
