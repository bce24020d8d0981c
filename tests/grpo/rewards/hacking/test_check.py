from __future__ import annotations

from collections.abc import Sequence

import pytest

from grpo.config.rewards import RewardComponent
from grpo.errors import ConfigError, RewardError, Unscored
from grpo.messages import Message
from grpo.rewards import ConstantReward, RewardContext, RewardFunction, RewardResult, reward_function
from grpo.rewards.catalog import REWARDS, make_named_reward
from grpo.rewards.hacking.check import check_rewards, probe_reward
from grpo.rewards.hacking.probes import CASES, PROBES
from grpo.rewards.presets import DOMAINS, create_domain_reward
from grpo.rewards.text.refusals import is_refusal

ROBUST = ("helpfulness", "engagement", "correctness", "empathy", "action", "professionalism", *DOMAINS)


def _exploited_by(reward: RewardFunction) -> set[str]:
    return {finding.probe.name for finding in probe_reward(reward) if finding.exploited}


@pytest.mark.parametrize("kind", ROBUST)
def test_no_probe_exploits_a_quality_reward(kind: str):
    """In scenarios with expected facts: without them no text reward detects a negated fact."""
    assert _exploited_by(make_named_reward(kind)) == set()


@pytest.mark.parametrize("domain", DOMAINS)
def test_no_probe_exploits_a_preset(domain: str):
    """As none exploits its components."""
    assert _exploited_by(create_domain_reward(domain)) == set()


def test_probes_exploit_what_a_reward_does_not_measure():
    """Each reward has the exploits that its name suggests."""
    assert _exploited_by(make_named_reward("keywords")) == {"stuffing", "refusal", "negated", "copied"}
    assert {"refusal", "copied", "script"} <= _exploited_by(make_named_reward("conciseness"))
    longer = reward_function()(lambda turns: float(len(turns[-1].content)))
    assert {"length", "repetition", "stuffing"} <= _exploited_by(longer)


@pytest.mark.parametrize("opening", ["I'm sorry", "I cannot fulfill", "As an AI language model", "I must respectfully"])
def test_a_reward_that_knows_one_wording_of_refusals_is_exploited(opening: str):
    """The wording that scores highest counts, as a policy would learn that one."""

    def knows_one(turns: Sequence[Message]) -> float:
        return float(bool(turns[-1].content) and not turns[-1].content.startswith(opening))

    assert "refusal" in _exploited_by(reward_function()(knows_one))


def test_every_wording_of_a_refusal_probe_is_detected():
    """Each declines in another way."""
    (probe,) = [probe for probe in PROBES if probe.name == "refusal"]
    replies = [reply for case in CASES for reply in probe.replies(case)]
    assert len(replies) == 12 * len(CASES)
    assert all(map(is_refusal, replies))


def test_an_exploited_reward_is_refused_until_the_config_accepts_every_probe():
    """The message holds what to write."""
    exploited = RewardComponent(kind="keywords", weight=0.5, accepted_exploits=("stuffing", "copied"))
    with pytest.raises(
        ConfigError, match=r"keywords can be hacked by refusal .*\[stuffing, copied, refusal, negated\]"
    ):
        check_rewards([exploited])
    check_rewards([exploited.model_copy(update={"accepted_exploits": ("stuffing", "copied", "refusal", "negated")})])


def test_a_misspelt_probe_is_refused():
    """It would accept nothing."""
    with pytest.raises(ConfigError, match=r"\['lenght'\].*length"):
        check_rewards([RewardComponent(kind="helpfulness", weight=0.5, accepted_exploits=("lenght",))])


@pytest.mark.parametrize("kind", sorted(name for name, reward in REWARDS.items() if not reward.probed))
def test_controls_and_verified_outcomes_are_not_probed(kind: str):
    """They do not read text, or cost by the call."""
    options = {"model": "openai+http://127.0.0.1:9/v1#judge"} if kind == "ruler" else {}
    check_rewards([RewardComponent(kind=kind, weight=1.0, options=options)])
    with pytest.raises(RewardError, match="is not probed"):
        probe_reward(make_named_reward(kind, **options))


def test_a_reward_that_gives_honest_replies_nothing_cannot_be_examined():
    """Nor can one that leaves them unscored."""

    class Silent(RewardFunction):
        async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
            raise Unscored("never")

    for reward in (Silent(), reward_function()(lambda turns: 0.0)):
        with pytest.raises(RewardError, match="honest replies"):
            probe_reward(reward)


def test_an_unscored_probe_is_not_an_exploit():
    """A constant is exploited by all the others."""

    class Picky(ConstantReward):
        probed = True

        async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
            if not turns[-1].content:
                raise Unscored("silence")
            return await super().compute_reward(turns, context)

    exploited = _exploited_by(Picky())
    assert "empty" not in exploited
    assert {"stuffing", "refusal", "negated", "copied", "script"} == exploited
