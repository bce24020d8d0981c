"""The tables of the settings and of staleness, on curves that are made up."""

from __future__ import annotations

import pytest

from tests.benchmarks import continuous
from tests.benchmarks.algorithms import PLAIN, TASKS, Run, row, table_rows
from tests.benchmarks.curves import at_target


def run(*success: float, tokens: int = 100, cpu_s: float = 1.0) -> Run:
    """Held-out success after each update, which takes that many tokens and seconds each time."""
    updates = range(1, len(success) + 1)
    return Run(
        commit="x",
        episodes=[256 * k for k in updates],
        tokens=[tokens * k for k in updates],
        cpu_s=[cpu_s * k for k in updates],
        success=list(success),
    )


def test_the_target_is_reached_when_success_stays_there_for_two_updates():
    assert at_target([0.5, 0.8, 0.7, 0.8, 0.9], 0.8) == 3
    assert at_target([0.5, 0.7, 0.8], 0.8) is None


def test_differences_are_paired_by_seed_and_ratios_are_geometric_means():
    """Differences of the means 0 and .2: mean .1, error .1, times t(.975, 1) = 12.706. Tokens to 80 %: half and twice.

    Logs of these ratios ∓.6931: mean 0, error .6931, so that the interval is e^∓8.807.
    """
    plain = [run(0.8, 0.8), run(0.8, 0.8)]
    runs = [run(0.8, 0.8, tokens=50), run(1.0, 1.0, tokens=200)]
    assert row("credit", runs, plain, [0.8, 0.8]) == (
        "credit",
        "2",
        "90.0%",
        "+0.100 [-1.171, +1.371]",
        "90.0%",
        "+0.100 [-1.171, +1.371]",
        "1.00 [1.00, 1.00]",
        "1.00 [0.00, 6682.65]",
        "1.00 [1.00, 1.00]",
    )


def test_a_seed_that_does_not_reach_the_target_is_said():
    plain = [run(0.8, 0.8), run(0.8, 0.8)]
    assert row("slow", [run(0.8, 0.8), run(0.5, 0.5)], plain, [0.8, 0.8])[-3:] == ("not reached by 1 of 2",) * 3
    assert row("fast", plain, [run(0.5, 0.5), run(0.8, 0.8)], [0.8, 0.8])[-3:] == ("the other does not reach it",) * 3


def test_a_bound_on_staleness_is_compared_with_stages():
    """Wall time 10 and 20 against 20 and 20 s: ratios ½ and 1, mean log −.3466, error .3466, so e^(−.3466 ∓ 4.404)."""

    def bound(seconds: float, success: float) -> continuous.Run:
        return continuous.Run(
            seconds=[seconds / 2, seconds], success=[success, success], staleness=1.5, dropped=3, busy=0.5
        )

    stages = [bound(20, 0.7), bound(20, 0.7)]
    assert continuous.row(4, [bound(10, 0.8), bound(20, 0.6)], stages) == (
        "4",
        "2",
        "70.0%",
        "+0.000 [-1.271, +1.271]",
        "70.0%",
        "+0.000 [-1.271, +1.271]",
        "15 s",
        "0.71 [0.01, 57.80]",
        "not reached by 1 of 2",
        "1.50",
        "6",
        "50%",
    )
    assert continuous.row(0, stages, stages)[3:9] == ("", "70.0%", "", "20 s", "", "")


def test_settings_with_a_reward_of_their_own_are_compared_with_grpo_on_the_same_reward():
    """GRPO has no differences, and its episodes, tokens and seconds to the target are numbers."""
    with pytest.raises(KeyError, match="success only"):
        list(table_rows(TASKS["support_desk"], {PLAIN: [run(0.8, 0.8)], "MaxRL": [run(0.8, 0.8)]}))
    rows = list(table_rows(TASKS["support_desk"], {PLAIN: [run(0.8, 0.8)]}))
    assert rows == [(PLAIN, "1", "80.0%", "", "80.0%", "", "256", "100", "1 s")]


def test_a_gain_is_counted_from_the_first_update_of_grpo_with_the_same_seed():
    """15 points above .40 and .55. GRPO has .55 after two updates, and the other setting after one."""
    plain = [run(0.40, 0.55, 0.60), run(0.55, 0.60, 0.69)]
    task = TASKS["family_relationships"]
    assert task.targets(plain) == pytest.approx([0.55, 0.70])
    faster = [run(0.55, 0.60, 0.70)]
    assert row("faster", faster, plain[:1], task.targets(plain[:1]))[-3:] == ("0.50",) * 3
