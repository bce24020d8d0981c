"""Tables and lines that commands print."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from grpo.evaluation.schema import EvaluationDocument
from grpo.registry import ChampionChange, Lineage
from grpo.registry.lineage import Ancestor
from grpo_cli.console import PlainConsole
from grpo_cli.display import _minutes, print_checks, print_evaluation, print_lineage, print_reproduction
from grpo_flows.reproduce import Reproduction
from grpo_local.checks import CheckResult, DoctorReport
from tests.grpo.registry.making import ANNA, make_provenance


def test_a_missing_extra_is_printed_with_its_remedy():
    """The remedy can be copied as it is."""
    shown = io.StringIO()
    remedy = "pip install 'grpo-agent-framework[vllm]'"
    check = CheckResult(area="extras", name="vllm", state="absent", detail="not [/here]", remedy=remedy)
    print_checks(PlainConsole(file=shown, width=200), DoctorReport(checks=(check,)))
    assert remedy in shown.getvalue()
    assert "not [/here]" in shown.getvalue()


def test_a_remedy_is_whole_in_a_narrow_terminal():
    """No word of it is cut, however long."""
    shown = io.StringIO()
    remedy = "chmod u+w /a-folder-with-a-name-that-is-longer-than-a-column-of-the-table-is-wide/artifacts"
    check = CheckResult(area="stores", name="artifacts", state="problem", detail="cannot be written", remedy=remedy)
    print_checks(PlainConsole(file=shown, width=60), DoctorReport(checks=(check,)))
    cells = [line.split("│")[-2] for line in shown.getvalue().splitlines() if line.count("│") > 2]
    assert remedy.replace(" ", "") in "".join(cells).replace(" ", "")
    assert shown.getvalue().endswith(f"a run would fail, because of:\n  artifacts: cannot be written. {remedy}\n")


def test_pass_at_k_is_printed_with_its_intervals():
    """One row for each k: success in at least one attempt, and in each."""
    shares = {"mean": 0.75, "low": 0.5, "high": 1.0, "count": 20}
    slice_metrics = {"name": "all", "success": shares, "reward": None}
    measurement = {
        "policy": "ba5e",
        "confidence": 0.95,
        "overall": slice_metrics,
        "by_category": (),
        "by_difficulty": (),
        "pass_at_k": (shares, {**shares, "mean": 0.9}),
        "pass_hat_k": (shares, {**shares, "mean": 0.625}),
        "episodes": 40,
        "failed_share": 0.0,
        "truncated_share": 0.0,
        "mean_completion_tokens": 12.5,
    }
    about = {"name": "desk", "model": "base", "created": "", "scenarios": 20, "scenarios_digest": "", "config": ""}
    document = EvaluationDocument.model_validate({**about, "code_digest": "", "measurement": measurement})
    console = Console(width=120, file=io.StringIO())
    print_evaluation(console, document)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    rows = [re.findall(r"[^\s│]+", line) for line in printed.splitlines()]
    (row,) = [cells for cells in rows if cells[:1] == ["2"]]
    assert row == ["2", "20", "0.900", "[0.500,", "1.000]", "0.625", "[0.500,", "1.000]"]


def _printed(result: Reproduction | Lineage) -> str:
    console = PlainConsole(width=60)
    with console.capture() as capture:
        if isinstance(result, Lineage):
            print_lineage(console, result)
        else:
            print_reproduction(console, result)
    return capture.get()


def test_a_lineage_is_printed_in_lines_that_can_be_searched():
    """In a narrow terminal, too: nothing is truncated."""
    forced = ChampionChange(
        number=1,
        action="promote",
        champion=2,
        content="c2",
        replaced=1,
        previous=1,
        reason="[b]looked at it[/b]",
        by=ANNA,
        at="2026-03-04T05:06:07+00:00",
        forced=True,
    )
    lineage = Lineage(
        name="desk",
        version=2,
        run_id="r",
        aliases=["champion"],
        tags={"verdict": "refuse"},
        provenance=make_provenance(
            config={
                "scenarios": {
                    "sources": [{"kind": "jsonl", "path": "a.jsonl"}, {"kind": "verifiers", "id": "my-words"}]
                }
            },
            external_digests={"shop.rewards:Politeness, module shop.words": "5d" * 32},
        ),
        parents=(
            Ancestor(policy="p1", version=1, model="store/x"),
            Ancestor(policy="base", version=4, model="models/desk_clerk", refusal="models:/desk/4 is not signed"),
        ),
        evaluated_against=1,
        history=(forced,),
        admitted="2026-03-03 by ben@laptop: of the other team",
        moved="the alias champion of desk was moved by hand to version 1. Version 2 was promoted",
        unsigned=(3,),
    )
    lines = _printed(lineage).splitlines()
    assert "trained from policy p1, version 1" in lines
    assert "  external code     shop.rewards:Politeness, module shop.words: 5d5d5d5d5d5d5d5d" in lines
    assert "  trained from policy base, version 4: models:/desk/4 is not signed" in lines
    assert (
        "2026-03-04T05:06:07+00:00 promote: version 2 instead of 1, forced, by anna@laptop, flow run run-1: "
        "[b]looked at it[/b]" in lines
    )
    assert "promotion record 3 is not signed, and is ignored" in lines
    assert "the alias champion of desk was moved by hand to version 1. Version 2 was promoted" in lines
    assert "  admitted          2026-03-03 by ben@laptop: of the other team" in lines
    assert any(line.split() == ["sources", "jsonl", "a.jsonl;", "verifiers", "my-words"] for line in lines)
    assert any(line.split() == ["code", "c0de,", "commit", "abc"] for line in lines)


def test_different_weights_are_printed_with_the_iteration_and_the_first_difference():
    """The second update gave other weights, under another torch; the data is equal."""
    differences = {"package torch": ("2.13.0", "2.14.0"), "threads": ("1", "8")}
    result = Reproduction(
        model="models:/desk/3",
        expected=("base", "p1", "p2"),
        reproduced=("base", "p1", "x2"),
        iterations=2,
        differences=differences,
    )
    assert not result.equal
    printed = _printed(result)
    assert "package torch: was 2.13.0, is 2.14.0" in printed
    assert "different weights from iteration 2 on. Policy p2 was registered, this run gave x2" in printed
    assert "First difference: package torch" in printed


def test_equal_weights_are_printed_with_the_differences_of_the_inputs():
    """Another number of threads need not change the weights."""
    result = Reproduction(
        model="models:/desk/3",
        expected=("base", "p1"),
        reproduced=("base", "p1"),
        iterations=1,
        differences={"threads": ("1", "8")},
    )
    assert result.equal
    assert "equal weights, policy p1" in _printed(result)
    assert "threads: was 1, is 8" in _printed(result)


@pytest.mark.parametrize(
    ("reproduced", "first"),
    [
        (("x", "sft", "g1"), "the base"),
        (("base", "x", "x1"), "SFT or DPO"),
        (("base", "sft", "x1"), "iteration 1"),
        (("base", "sft", "g1"), None),
    ],
)
def test_the_first_difference_of_a_fine_tuned_run_is_named_by_its_stage(reproduced: tuple[str, ...], first: str | None):
    """The base, the result of SFT and one iteration: the iteration is the first one."""
    result = Reproduction(
        model="m", expected=("base", "sft", "g1"), reproduced=reproduced, iterations=1, differences={}
    )
    assert result.first_difference == first


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(42, "a minute"), (60, "a minute"), (61, "2 minutes"), (150, "3 minutes"), (9000, "2.5 hours")],
)
def test_minutes_are_rounded_up(seconds: float, text: str):
    assert _minutes(seconds) == text
