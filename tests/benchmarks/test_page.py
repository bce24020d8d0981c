"""The page of benchmarks is laid out from what each part measured last."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.page import PAGE, Findings, Section, Table, Versus, keep

ORDER = ("step", "rollout", "gpu")


def _section(title: str, cell: str, *, ratio: float = 4.0, where: str = "here") -> Section:
    gist = Versus(measure=title, ours="1 s", against="TRL 4 s", ratio=ratio, bound=3)
    table = Table(head=("s",), rows=((cell,),))
    return Section(findings=Findings(title=title, text="So it went.", tables=(table,), gist=(gist,)), measured=where)


def test_a_part_that_is_measured_alone_leaves_the_others_as_they_were(tmp_path: Path):
    """Each section says where it was measured; sections stand in the order of the parts."""
    keep("rollout", _section("Rollout", "1.5", where="one machine"), ORDER, tmp_path)
    keep("step", _section("Step", "0.3"), ORDER, tmp_path)
    keep("step", _section("Step", "0.2", where="another machine"), ORDER, tmp_path)
    text = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert text.index("## Step") < text.index("| 0.2 |") < text.index("Measured on another machine.")
    assert text.index("## Rollout") < text.index("| 1.5 |") < text.index("Measured on one machine.")
    assert "0.3" not in text


@pytest.mark.parametrize(("ratio", "told"), [(3.0, "| 3.0 × | 3 × |"), (2.9, "| 2.9 × | 3 ×: missed |")])
def test_the_gist_says_where_a_bound_is_missed(tmp_path: Path, ratio: float, told: str):
    """The table at the top of the page."""
    keep("step", _section("Step", "0.2", ratio=ratio), ORDER, tmp_path)
    assert told in (tmp_path / PAGE).read_text(encoding="utf-8").split("## Step")[0]


def test_what_cannot_be_measured_here_keeps_what_was_measured_elsewhere(tmp_path: Path):
    """A machine without a GPU says so, unless there is a table from one that has it."""
    absent = Section(findings=Findings(title="On a GPU", text="Not measured: no device."), measured="a laptop")
    keep("gpu", absent, ORDER, tmp_path)
    assert "Not measured: no device." in (tmp_path / PAGE).read_text(encoding="utf-8")
    keep("gpu", _section("On a GPU", "0.01"), ORDER, tmp_path)
    keep("gpu", absent, ORDER, tmp_path)
    assert "| 0.01 |" in (tmp_path / PAGE).read_text(encoding="utf-8")
