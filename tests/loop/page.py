"""docs/internals/loop.md and docs/internals/loop.png: success over time, and the events on it."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import PercentFormatter

from grpo.evaluation.plots import CANDIDATE, CHAMPION, INK, MUTED, png
from grpo.rewards.learned.metrics import wilson_interval
from tests.benchmarks.page import Table, here
from tests.loop.customers import Visit
from tests.loop.record import Record, success
from tests.places import INTERNALS

PAGE, PICTURE = "loop.md", "loop.png"
REGAINED = 0.9
"""Bound of the share of the lost success that is regained."""
BIN = 50
"""Customers of one point."""
ADVERSARIAL = "## Adversarial feedback"


def write_page(record: Record, *, changed_at: int, at_end: int) -> None:
    """Write both files; the section on adversarial feedback stays as it is."""
    (INTERNALS / PICTURE).write_bytes(png("A closed loop, without a hand", lambda axes: draw(axes, record), width=10.0))
    path = INTERNALS / PAGE
    _, heading, section = path.read_text(encoding="utf-8").partition(ADVERSARIAL) if path.exists() else ("", "", "")
    written = page(record, changed_at=changed_at, at_end=at_end)
    path.write_text(written + (f"\n{heading}{section}" if heading else ""), encoding="utf-8")


def write_adversarial(section: str) -> None:
    """Replace the page's section on adversarial feedback."""
    path = INTERNALS / PAGE
    loop, _, _ = path.read_text(encoding="utf-8").partition(ADVERSARIAL)
    path.write_text(f"{loop.rstrip()}\n\n{ADVERSARIAL}\n\n{section}\n", encoding="utf-8")


def draw(axes: Axes, record: Record) -> None:
    """Success of each `BIN` customers by version, with the events."""
    axes.set_title(f"Customers whose matter was settled, {BIN} a point")
    visits = record.visits
    last = max(2, *(visit.version for visit in visits))
    shades = LinearSegmentedColormap.from_list("versions", ["#b9cdf0", CANDIDATE, INK])
    for version in sorted({visit.version for visit in visits}):
        points = [(start, visits[start : start + BIN]) for start in range(0, len(visits), BIN)]
        shown = [
            (start + len(part) / 2, success([visit for visit in part if visit.version == version]))
            for start, part in points
            if sum(visit.version == version for visit in part) > len(part) / 2
        ]
        if shown:
            color = CHAMPION if version == 1 else shades((version - 1) / (last - 1))
            axes.plot(*zip(*shown, strict=True), color=color, marker="o", label=f"version {version}")
    marks: dict[int, list[str]] = {}
    for event in record.events:
        if event.shown:
            marks.setdefault(event.customers, []).append(event.name)
    for customers, names in marks.items():
        if 0 < customers < len(visits):
            axes.axvline(customers, color=MUTED, linewidth=0.8, linestyle=":")
            axes.text(
                customers, 0.02, "\n".join(names) + " ", rotation=90, ha="right", va="bottom", color=INK, size=6.5
            )
    axes.set_ylim(0.0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("customers")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.02), ncols=5)


def page(record: Record, *, changed_at: int, at_end: int) -> str:
    """The page's Markdown."""
    before, fallen, regained = record.phases(changed_at, at_end)
    lost, back = success(before) - success(fallen), success(regained) - success(fallen)
    trained = [report for report in record.reports if report.verdict != "nothing to do"]
    missed = "" if back >= REGAINED * lost else f", **missed: {REGAINED:.0%} is the bar**"
    rows = [
        _row("the shop as it was, version 1", before),
        _row("new product and new wording, version 1", fallen),
        _row(f"the last {len(regained)} of them, version {_versions(regained)}", regained),
    ]
    events = [
        (f"{event.seconds:.0f} s", str(event.customers), event.name, event.detail.replace("|", "/"))
        for event in record.events
    ]
    parts = [
        "# The closed loop",
        f"Written by `make loop` on {here()}: a champion is served by `grpo serve`, simulated customers talk to it "
        "through OpenAI's client and give feedback, a new product with new wording arrives, and `grpo retrain`, "
        "started at the end of each day as a schedule would, decides by its triggers, trains, and promotes by its "
        "gates. The server swaps by itself. The tools of the desk are run by the client.",
        f"![Success over time]({PICTURE})",
        Table(head=("customers", "number", "settled", "95 %"), rows=tuple(rows)).markdown(),
        f"Of {lost * 100:.1f} points that were lost, {back * 100:.1f} are regained: {back / lost:.0%}{missed}.",
        "## Events",
        Table(head=("after", "customers", "event", ""), rows=tuple(events)).markdown(),
        "## The log in each retraining",
        *(_joins(index, report.triggers.curation.served) for index, report in enumerate(trained, start=1)),
    ]
    parts += [
        f"Accepted conversations {report.triggers.curation.accepted} of {report.triggers.curation.records}; rejected "
        f"{report.triggers.curation.rejected}; mixture {report.mixture}; corrections {report.corrections}."
        for report in trained
    ]
    return "\n\n".join(parts) + "\n"


def _versions(visits: Sequence[Visit]) -> str:
    return ", ".join(str(version) for version in sorted({visit.version for visit in visits}))


def _row(name: str, visits: Sequence[Visit]) -> tuple[str, ...]:
    low, high = wilson_interval(sum(visit.success for visit in visits), len(visits))
    return name, str(len(visits)), f"{success(visits):.1%}", f"{low:.1%} to {high:.1%}"


def _joins(index: int, counts: dict[str, int]) -> str:
    rows = tuple((name, str(count)) for name, count in counts.items())
    return Table(head=(f"training {index}", "count"), rows=rows).markdown()
