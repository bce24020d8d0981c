"""The page's section of the races on public tasks."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.race import CurvePoint
from tests.benchmarks.race_tasks import COURSES, OURS, THEIRS, Side, measure


def side(*successes: float, seconds: float) -> str:
    curve = tuple(
        CurvePoint(seconds=seconds * (k + 1), cpu_s=seconds * (k + 1) / 2, iteration=k + 1, success=success)
        for k, success in enumerate(successes)
    )
    return Side(curve=curve, measured="this machine").model_dump_json()


def test_only_complete_races_are_on_the_page(tmp_path: Path) -> None:
    """A family without TRL's side is not complete. An iteration has 32 × 8 = 256 episodes."""
    family = next(iter(COURSES))
    records = tmp_path / family
    records.mkdir()
    (records / OURS).write_text(side(0.5, 0.7, seconds=10))
    assert measure(tmp_path).tables == ()
    (records / THEIRS).write_text(side(0.5, seconds=120))
    findings = measure(tmp_path)
    assert findings.tables[1].rows == (
        ("1", "256", "10 s (5 s of CPU time): 50.0%", "120 s (60 s of CPU time): 50.0%"),
        ("2", "512", "20 s (10 s of CPU time): 70.0%", ""),
    )
    assert findings.gist[0].ratio == 6
    assert findings.gist[0].against == "TRL not reached in 120 s (50%)"
