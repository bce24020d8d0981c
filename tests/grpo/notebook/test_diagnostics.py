from __future__ import annotations

import math

import pytest

from grpo.learner.metrics import UpdateMetrics
from grpo.notebook.diagnostics import DiagnosticsMonitor, DiagnosticsSettings, IterationRecord
from grpo.rewards.rollout_summary import RolloutSummary


def record(index: int = 0, *, rollout: dict[str, object] | None = None, **update: float) -> IterationRecord:
    """A healthy iteration with these changes."""
    shown = {
        "groups": 10,
        "informative_groups": 5,
        "episodes": 80,
        "rewarded": 80,
        "verified": 80,
        "reward": 0.5,
        "success": 0.5,
        "components": {},
        "truncated_share": 0.0,
        "failed_share": 0.0,
        **(rollout or {}),
    }
    return IterationRecord(
        index=index,
        rollout=RolloutSummary.model_validate(shown),
        update=UpdateMetrics(**{"kl_to_base": 0.01, "entropy": 1.0, **update}),
    )


def test_nothing_is_known_before_the_first_iteration():
    """Unknown is not healthy."""
    assert DiagnosticsMonitor().get_health_status().status == "unknown"


def test_an_ordinary_iteration_is_healthy():
    """It has no reasons."""
    health = DiagnosticsMonitor().observe(record())
    assert (health.status, health.reasons) == ("healthy", {})


@pytest.mark.parametrize("name", ["loss", "gradient_norm", "entropy"])
def test_a_non_finite_metric_is_named(name: str):
    """NaN in any metric of the update."""
    health = DiagnosticsMonitor().observe(record(**{name: math.nan}))
    assert health.status == "unhealthy"
    assert health.reasons["non_finite"] == f"{name} is nan"


@pytest.mark.parametrize(("kl", "alarm"), [(0.3, True), (0.2, False)])
def test_a_kl_spike_is_relative_to_the_median_before(kl: float, alarm: bool):
    """The median before is .05; more than five times that is a spike, .25 the threshold."""
    monitor = DiagnosticsMonitor()
    for index, usual in enumerate((0.01, 0.05, 0.06)):
        monitor.observe(record(index, kl_to_base=usual))
    assert ("kl_spike" in monitor.observe(record(3, kl_to_base=kl)).reasons) is alarm


def test_a_kl_below_the_floor_is_not_a_spike():
    """From 1e-4 to .04: below the floor of .05."""
    monitor = DiagnosticsMonitor()
    monitor.observe(record(0, kl_to_base=1e-4))
    assert monitor.observe(record(1, kl_to_base=0.04)).status == "healthy"


@pytest.mark.parametrize(("entropy", "alarm"), [(0.19, True), (0.21, False)])
def test_entropy_collapses_below_a_share_of_the_first(entropy: float, alarm: bool):
    """A tenth of 2."""
    monitor = DiagnosticsMonitor()
    monitor.observe(record(0, entropy=2.0))
    assert ("entropy_collapse" in monitor.observe(record(1, entropy=entropy)).reasons) is alarm


@pytest.mark.parametrize(("success", "alarm"), [(0.1, True), (0.95, False)])
def test_too_few_informative_groups_are_an_issue_unless_the_task_is_solved(success: float, alarm: bool):
    """All siblings alike: at 10 % success nothing is learned, at 95 % nothing is left to learn."""
    health = DiagnosticsMonitor().observe(record(rollout={"informative_groups": 0, "success": success}))
    assert ("uninformative_groups" in health.reasons) is alarm


def test_a_teacher_needs_no_informative_groups():
    """Equal rewards have a gradient under a teacher."""
    health = DiagnosticsMonitor().observe(record(rollout={"informative_groups": 0, "success": 0.1}, teacher_kl=0.2))
    assert "uninformative_groups" not in health.reasons


@pytest.mark.parametrize(
    ("issue", "share", "alarm"),
    [("truncation", 0.31, True), ("truncation", 0.3, False), ("failures", 0.06, True), ("failures", 0.05, False)],
)
def test_truncated_and_failed_episodes_are_issues(issue: str, share: float, alarm: bool):
    """More than 30 % truncated, more than 5 % failed."""
    name = "truncated_share" if issue == "truncation" else "failed_share"
    assert (issue in DiagnosticsMonitor().observe(record(rollout={name: share})).reasons) is alarm


def test_a_rising_reward_with_falling_success_is_reward_hacking():
    """Two windows of two: reward .5 → .7, success .5 → .4; the alarm is there with the last iteration, not before."""
    monitor = DiagnosticsMonitor(DiagnosticsSettings(window=2))
    shown = [(0.5, 0.5), (0.5, 0.5), (0.7, 0.4), (0.7, 0.4)]
    alarms = [
        "reward_hacking" in monitor.observe(record(k, rollout={"reward": reward, "success": success})).reasons
        for k, (reward, success) in enumerate(shown)
    ]
    assert alarms == [False, False, False, True]


def test_a_rising_reward_with_rising_success_is_healthy():
    """Training works."""
    monitor = DiagnosticsMonitor(DiagnosticsSettings(window=1))
    monitor.observe(record(0, rollout={"reward": 0.5, "success": 0.5}))
    assert monitor.observe(record(1, rollout={"reward": 0.7, "success": 0.6})).status == "healthy"


def test_replies_that_do_not_depend_on_the_input_are_an_issue():
    """Whatever the entropy is."""
    monitor = DiagnosticsMonitor()
    reading = {"mutual_information": 0.3, "input_agnostic": False}
    assert monitor.observe(record(0, rollout=reading, entropy=2.0)).status == "healthy"
    health = monitor.observe(record(1, rollout={"mutual_information": 0.001, "input_agnostic": True}, entropy=2.0))
    assert list(health.reasons) == ["input_agnostic"]
    assert "mutual information 0.001 nats per token" in health.reasons["input_agnostic"]
