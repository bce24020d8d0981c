"""What a terminal tells of a version that was made again."""

from __future__ import annotations

from flows.cli.console import PlainConsole
from flows.reproduce import Reproduction
from flows.versions import print_lineage, print_reproduction
from grpo.registry import ChampionChange, Lineage
from grpo.registry.lineage import Ancestor
from tests.grpo.registry.making import ANNA, make_provenance


def _told(result: Reproduction | Lineage) -> str:
    console = PlainConsole(width=60)
    with console.capture() as capture:
        if isinstance(result, Lineage):
            print_lineage(console, result)
        else:
            print_reproduction(console, result)
    return capture.get()


def test_a_lineage_is_told_on_lines_that_can_be_searched():
    """However narrow the terminal: nothing is cut off."""
    forced = ChampionChange(
        number=1,
        action="promote",
        champion=2,
        replaced=1,
        previous=1,
        reason="[b]looked at it[/b]",
        by=ANNA,
        at="2026-03-04T05:06:07+00:00",
        forced=True,
    )
    found = Lineage(
        name="desk",
        version=2,
        run_id="r",
        aliases=["champion"],
        tags={"verdict": "refuse"},
        provenance=make_provenance(external_digests={"shop.rewards:Politeness, module shop.words": "5d" * 32}),
        parents=(
            Ancestor(policy="p1", version=1, model="store/x"),
            Ancestor(policy="base", version=None, model="models/desk_clerk"),
        ),
        evaluated_against=1,
        history=(forced,),
        pending=forced.model_copy(update={"action": "rollback", "champion": 1, "replaced": 2, "forced": False}),
    )
    lines = _told(found).splitlines()
    assert "trained from policy p1, version 1" in lines
    assert "  brought in        shop.rewards:Politeness, module shop.words: 5d5d5d5d5d5d5d5d" in lines
    assert "  trained from policy base, base model models/desk_clerk" in lines
    assert (
        "2026-03-04T05:06:07+00:00 promote, forced: version 2 instead of 1, by anna@laptop, flow run run-1: "
        "[b]looked at it[/b]" in lines
    )
    (pending,) = [line for line in lines if line.startswith("pending, the next promotion or rollback settles it: ")]
    assert "rollback: version 1 instead of 2, by anna@laptop" in pending
    assert any(line.split() == ["code", "c0de,", "commit", "abc"] for line in lines)


def test_other_weights_are_told_with_the_iteration_and_what_differs_first():
    """The second update went another way, under another torch; the data is the same."""
    differences = {"package torch": ("2.13.0", "2.14.0"), "threads": ("1", "8")}
    result = Reproduction(
        model="models:/desk/3", expected=("base", "p1", "p2"), found=("base", "p1", "x2"), differences=differences
    )
    assert not result.equal
    told = _told(result)
    assert "package torch: was 2.13.0, is 2.14.0" in told
    assert "other weights from iteration 2 on; policy p2 was registered, x2 came out" in told
    assert "what differs first: package torch" in told


def test_the_same_weights_are_told_with_what_differs_all_the_same():
    """Another number of threads need not change anything."""
    result = Reproduction(
        model="models:/desk/3", expected=("base", "p1"), found=("base", "p1"), differences={"threads": ("1", "8")}
    )
    assert result.equal
    assert "the same weights, policy p1" in _told(result)
    assert "threads: was 1, is 8" in _told(result)
