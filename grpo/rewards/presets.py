"""Composite rewards for a domain."""

from __future__ import annotations

from collections.abc import Sequence

from grpo.errors import ConfigError
from grpo.rewards.catalog import make_named_reward
from grpo.rewards.composite import CompositeReward, MultiObjectiveReward
from grpo.rewards.text.correctness import SimilarityReward

DOMAINS = ("customer_service", "technical_support", "sales", "education", "creative_writing")
"""Domains that have a reward of their own."""


def create_customer_service_reward(
    expected_responses: Sequence[str] = (), *, weight: float = 1.0, aggregation: str = "weighted_sum"
) -> CompositeReward:
    """Helpfulness .35, safety .25, engagement .20, conciseness .20.

    With `expected_responses`: empathy, action and professionalism .25 each, conciseness .10, and similarity to one of
    these replies .15.
    """
    if expected_responses:
        return MultiObjectiveReward(
            [
                (make_named_reward("empathy"), 0.25),
                (make_named_reward("action"), 0.25),
                (make_named_reward("professionalism"), 0.25),
                (make_named_reward("conciseness"), 0.10),
                (SimilarityReward(expected=expected_responses), 0.15),
            ],
            aggregation=aggregation,
            weight=weight,
        )
    shares = {"helpfulness": 0.35, "safety": 0.25, "engagement": 0.20, "conciseness": 0.20}
    return MultiObjectiveReward(
        [(make_named_reward(name), share) for name, share in shares.items()], aggregation=aggregation, weight=weight
    )


def create_domain_reward(domain: str, *, weight: float = 1.0) -> CompositeReward:
    """The domain's reward .6, helpfulness .3, engagement .1, or for creative writing only the domain's reward."""
    if domain not in DOMAINS:
        raise ConfigError(f"domain {domain!r} has no reward. Use one of {', '.join(DOMAINS)}")
    if domain == "creative_writing":
        return CompositeReward([(make_named_reward(domain), 1.0)], weight=weight)
    shares = {domain: 0.6, "helpfulness": 0.3, "engagement": 0.1}
    return CompositeReward([(make_named_reward(name), share) for name, share in shares.items()], weight=weight)
