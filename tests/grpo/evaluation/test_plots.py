"""The report's figures: what is drawn where, in which colour, and under which words."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grpo.evaluation import plots
from grpo.evaluation.plots import CANDIDATE, CHAMPION, GRID, INK, MUTED, draw_note, plot_png, png, svg
from grpo.evaluation.schema import Evaluation, IterationMetrics
from tests.grpo.evaluation.test_html_report import document, evaluation, iteration


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is saved from now on, as it was when it was saved."""
    saved: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *arguments: Any, **options: Any) -> None:
        saved.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return saved


def _iterations(count: int, **changes: Any) -> list[IterationMetrics]:
    return [IterationMetrics.model_validate(iteration(index, **changes)) for index in range(count)]


def _values(line: Line2D) -> list[float]:
    return [float(value) for value in line.get_ydata()]


def _lines(axes: Axes) -> dict[str, Line2D]:
    """The lines that have a name, by it."""
    return {str(line.get_label()): line for line in axes.lines if not str(line.get_label()).startswith("_")}


def _legend(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def _ticks(axis: Axis) -> list[str]:
    """Labels of the visible ticks, in order of their positions."""
    low, high = sorted(axis.get_view_interval())
    shown = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [tick.label1.get_text() for tick in sorted(shown, key=lambda tick: float(tick.get_loc()))]


# Places of the six rows: all at 0, three categories from 1.4 on, two difficulties from 4.8 on.
_PLACES = [0, 1.4, 2.4, 3.4, 4.8, 5.8]
_CHAMPION_MEANS = [0.412, 0.351, 0.402, 0.364, 0.622, 0.242]
_CANDIDATE_MEANS = [0.813, 0.822, 0.711, 0.854, 0.913, 0.723]


def test_heldout_results_are_in_rows_with_gaps_between_the_kinds(figures: list[Figure]) -> None:
    """The champion .13 above the middle of a row, the candidate .13 below it; each interval reaches .06 to a side."""
    plots.heldout(Evaluation.model_validate(evaluation()))
    (axes,) = figures[0].axes
    for line, spans, means, color, offset in zip(
        axes.lines, axes.collections, (_CHAMPION_MEANS, _CANDIDATE_MEANS), (CHAMPION, CANDIDATE), (-0.13, 0.13),
        strict=True,
    ):  # fmt: skip
        places = [place + offset for place in _PLACES]
        assert list(line.get_xdata()) == pytest.approx(means)
        assert _values(line) == pytest.approx(places)
        assert (line.get_color(), line.get_marker(), line.get_linestyle(), line.get_markersize()) == (
            color, "o", "None", 5.0,
        )  # fmt: skip
        for segment, mean, place in zip(spans.get_segments(), means, places, strict=True):
            assert segment.tolist() == [pytest.approx([mean - 0.06, place]), pytest.approx([mean + 0.06, place])]
        assert to_hex(spans.get_color()[0]) == color
        assert (float(spans.get_alpha()), float(spans.get_linewidth()[0])) == (0.55, 2.0)


def test_heldout_rows_are_named_and_the_axis_shows_shares(figures: list[Figure]) -> None:
    """From top to bottom, half a row of room at both ends; vertical grid lines from 0 % to 100 %."""
    drawing = plots.heldout(Evaluation.model_validate(evaluation()))
    (axes,) = figures[0].axes
    assert list(axes.get_yticks()) == pytest.approx(_PLACES)
    assert _ticks(axes.yaxis) == ["all", "return", "missing", "charge", "easy", "hard"]
    assert {label.get_color() for label in axes.get_yticklabels()} == {INK}
    assert {label.get_color() for label in axes.get_xticklabels()} == {MUTED}
    assert axes.get_ylim() == pytest.approx((6.35, -0.55))
    assert axes.get_xlim() == pytest.approx((-0.02, 1.02))
    assert _ticks(axes.xaxis) == ["0%", "20%", "40%", "60%", "80%", "100%"]
    assert {line.get_visible() for line in axes.get_xgridlines()} == {True}
    assert {line.get_visible() for line in axes.get_ygridlines()} == {False}
    assert _legend(figures[0]) == ["champion", "candidate"]
    # 9.2 in wide, .75 + .32 * 6.8 = 2.926 in high, at 72 points an inch
    assert 'viewBox="0 0 662.4 210.672"' in drawing
    assert 'aria-label="Held-out success, champion and candidate"' in drawing


def test_the_legend_of_the_heldout_results_stands_above_them_in_one_row() -> None:
    """Both names at one height, over the first row of the figure and left of its middle."""
    drawing = ElementTree.fromstring(plots.heldout(Evaluation.model_validate(evaluation())))
    at = {text.text: (float(text.get("x", 0)), float(text.get("y", 0))) for text in drawing.iter("text")}
    assert at["champion"][1] == at["candidate"][1] < at["all"][1]
    assert at["champion"][0] < at["candidate"][0] < 662.4 / 2


def test_rewards_are_plain_numbers(figures: list[Figure]) -> None:
    """A heldout reward has plain numbers on its axis, which ends where the values do."""
    drawing = plots.heldout(Evaluation.model_validate(evaluation(metric="reward")))
    (axes,) = figures[0].axes
    assert not [text for text in _ticks(axes.xaxis) if "%" in text]
    low, high = axes.get_xlim()
    assert 0 < low < 0.182  # the lowest end of an interval, .242 - .06
    assert 0.973 < high < 1.02
    assert 'aria-label="Held-out reward, champion and candidate"' in drawing


@pytest.mark.parametrize(
    ("draw", "label", "lines"),
    [
        (plots.success, "Rollout success by iteration", {"success": [0.4, 0.4 + 0.4 / 24]}),
        (plots.kl_to_base, "KL to the base policy by iteration", {"KL": [0.0, 0.35 / 24]}),
        (plots.entropy, "Entropy by iteration", {"entropy": [0.42, 0.42 - 0.2 / 24]}),
        (plots.informative_share, "Informative groups by iteration", {"informative": [0.8, 0.8 - 0.4 / 24]}),
        (
            plots.reward,
            "Reward and its components by iteration",
            {"reward": [0.45, 0.45 + 0.4 / 24], "checks": [0.7, 0.7 + 0.2 / 24], "conciseness": [1.0, 1.0]},
        ),
        (
            plots.lost_share,
            "Truncated and failed episodes by iteration",
            {"truncated": [0.02, 0.02], "failed": [0.0, 0.0]},
        ),
    ],
)
def test_a_curve_shows_its_values_under_its_name(
    figures: list[Figure], draw: Callable[[Sequence[IterationMetrics]], str], label: str, lines: dict[str, list[float]]
) -> None:
    """Two iterations at 0 and 1; several lines are named in a legend, one needs none; 3.5 by 2.2 in."""
    drawing = draw(_iterations(2))
    (axes,) = figures[0].axes
    drawn = _lines(axes)
    assert {name: _values(line) for name, line in drawn.items()} == {
        name: pytest.approx(values) for name, values in lines.items()
    }
    assert all(list(line.get_xdata()) == [0, 1] for line in axes.lines)
    assert _legend(figures[0]) == (list(lines) if len(lines) > 1 else [])
    assert f'aria-label="{label}"' in drawing
    assert 'viewBox="0 0 252 158.4"' in drawing


def test_the_figures_of_the_curves_have_salts_of_their_own() -> None:
    """The same line drawn under five names: no identifier is in two of them."""
    flat = _iterations(2, success=0.5, kl_to_base=0.5, entropy=0.5, informative_share=0.5)
    names = [set(re.findall(r'\bid="([^"]+)"', draw(flat))) for draw in (
        plots.success, plots.kl_to_base, plots.entropy, plots.informative_share, plots.lost_share, plots.reward
    )]  # fmt: skip
    assert all(names)
    assert len(set.union(*names)) == sum(map(len, names))


def test_the_first_line_is_the_subject_and_the_others_are_dashed(figures: list[Figure]) -> None:
    """Solid and in the candidate's colour, above the others; these are thinner, each with small marks of its colour."""
    plots.reward(_iterations(2))
    (axes,) = figures[0].axes
    subject, checks, conciseness = _lines(axes).values()
    assert (subject.get_color(), subject.get_linestyle(), subject.get_linewidth()) == (CANDIDATE, "-", 1.6)
    assert (subject.get_marker(), subject.get_zorder()) == ("o", 3)
    assert subject.get_zorder() > checks.get_zorder()
    assert (checks.get_linestyle(), conciseness.get_linestyle()) == ("--", "-.")
    assert checks.get_color() != conciseness.get_color() != CANDIDATE
    assert {checks.get_linewidth(), conciseness.get_linewidth()} == {1.2}
    marks = [line for line in axes.lines if str(line.get_label()).startswith("_")]
    assert [(mark.get_color(), mark.get_marker(), mark.get_linestyle(), mark.get_markersize()) for mark in marks] == [
        (line.get_color(), "o", "None", 1.4) for line in (checks, conciseness)
    ]
    assert [_values(mark) for mark in marks] == [_values(checks), _values(conciseness)]


def test_values_that_are_missing_are_gaps(figures: list[Figure]) -> None:
    """A component that came with the second iteration, and a success that was not verified in the first."""
    first, second = iteration(0, components={}, success=None), iteration(1, components={"checks": 0.5})
    played = [IterationMetrics.model_validate(one) for one in (first, second)]
    plots.reward(played)
    plots.success(played)
    reward, success = (figure.axes[0] for figure in figures)
    assert np.isnan(_values(_lines(reward)["checks"])[0])
    assert _values(_lines(reward)["checks"])[1] == 0.5
    assert np.isnan(_values(_lines(success)["success"])[0])


@pytest.mark.parametrize("draw", [plots.success, plots.informative_share])
def test_the_axis_of_a_share_is_whole(figures: list[Figure], draw: Callable[[Sequence[IterationMetrics]], str]) -> None:
    """0 to 100 % in quarters with 4 % of room at both ends, for all values."""
    draw(_iterations(3, success=0.1, informative_share=0.1))
    (axes,) = figures[0].axes
    assert axes.get_ylim() == pytest.approx((-0.04, 1.04))
    assert _ticks(axes.yaxis) == ["0%", "25%", "50%", "75%", "100%"]


@pytest.mark.parametrize(
    ("truncated", "failed", "top"), [(0.0, 0.0, 0.05), (0.02, 0.04, 0.05), (0.3, 0.1, 0.3), (0.1, 0.4, 0.4)]
)
def test_the_axis_of_lost_episodes_ends_at_the_highest_but_not_below_5_percent(
    figures: list[Figure], truncated: float, failed: float, top: float
) -> None:
    """A run without losses shows a flat line at the bottom; 4 % of the axis is room."""
    plots.lost_share(_iterations(3, truncated_share=truncated, failed_share=failed))
    (axes,) = figures[0].axes
    assert axes.get_ylim() == pytest.approx((-0.04 * top, 1.04 * top))
    assert all(text.endswith("%") for text in _ticks(axes.yaxis))


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ([0.5, 2.0], (-0.08, 2.08)),  # 0 is in sight; 4 % of 2 at both ends
        ([-1.0, -0.5], (-1.04, 0.04)),
        ([-1.0, 3.0], (-1.16, 3.16)),
        ([0.0, 0.0], (-0.04, 0.04)),  # nothing to see is not blown up
    ],
)
def test_the_axis_of_a_curve_includes_zero(
    figures: list[Figure], values: list[float], limits: tuple[float, float]
) -> None:
    """Without shares, the axis reaches from the lowest value to the highest and includes 0."""
    plots.entropy([IterationMetrics.model_validate(iteration(k, entropy=value)) for k, value in enumerate(values)])
    (axes,) = figures[0].axes
    assert axes.get_ylim() == pytest.approx(limits)
    assert not [text for text in _ticks(axes.yaxis) if "%" in text]


@pytest.mark.parametrize(
    ("count", "limits", "ticks"),
    [
        (1, (-0.5, 0.5), "0"),
        (11, (-0.5, 10.5), "0 2 4 6 8 10"),
        (25, (-0.72, 24.72), "0 5 10 15 20"),  # 3 % of 24
        (101, (-3.0, 103.0), "0 20 40 60 80 100"),
    ],
)
def test_iterations_have_whole_numbers_and_room_at_both_ends(
    figures: list[Figure], count: int, limits: tuple[float, float], ticks: str
) -> None:
    """At least half an iteration, else 3 % of all of them; at most six steps."""
    plots.entropy(_iterations(count))
    (axes,) = figures[0].axes
    assert axes.get_xlim() == pytest.approx(limits)
    assert " ".join(_ticks(axes.xaxis)) == ticks


def test_the_ticks_of_a_curve_are_few_and_round(figures: list[Figure]) -> None:
    """At most five steps, of 1, 2, 2.5 or 5 times a power of ten."""
    for top, expected in (
        (3.0, "0 1 2 3"),
        (7.0, "0 2 4 6"),
        (10.0, "0.0 2.5 5.0 7.5 10.0"),
        (20.0, "0 5 10 15 20"),
        (25.0, "0 10 20"),
    ):
        plots.entropy(_iterations(2, entropy=top))
        assert " ".join(_ticks(figures[-1].axes[0].yaxis)) == expected


def test_the_legend_of_a_curve_stands_below_it_in_two_columns() -> None:
    """reward and conciseness beside each other, checks below reward; under the axis."""
    drawing = ElementTree.fromstring(plots.reward(_iterations(2)))
    at = {text.text: (float(text.get("x", 0)), float(text.get("y", 0))) for text in drawing.iter("text")}
    assert at["reward"][1] == at["conciseness"][1] < at["checks"][1]
    assert at["reward"][0] == at["checks"][0] < at["conciseness"][0]
    assert at["reward"][1] > at["0"][1]


def test_a_curve_of_many_lines_is_as_high_as_its_legend_needs() -> None:
    """41 lines have 21 rows of a legend: 2.2 in and 17 rows of 0.165 in, at 72 points to the inch."""
    components = {f"part {number}": 0.5 for number in range(40)}
    drawing = plots.reward(_iterations(2, components=components))
    assert float(re.findall(r'viewBox="0 0 [\d.]+ ([\d.]+)"', drawing)[0]) == pytest.approx(72 * (2.2 + 17 * 0.165))
    assert "part 39" in drawing


def test_the_overview_has_the_curve_of_success_and_the_heldout_bars(figures: list[Figure]) -> None:
    """The verdict in its title; success by iteration on an axis of shares."""
    plot_png(document())
    (figure,) = figures
    training, _ = figure.axes
    assert figure.get_suptitle() == "support-desk: promote"
    assert training.get_title(loc="left") == "Rollout success by iteration"
    assert training.get_xlabel() == "iteration"
    (line,) = training.lines
    assert _values(line) == pytest.approx([0.4 + 0.4 * k / 24 for k in range(25)])
    assert training.get_ylim() == pytest.approx((-0.04, 1.04))
    assert _ticks(training.yaxis) == ["0%", "25%", "50%", "75%", "100%"]


def test_the_overview_shows_rewards_where_nothing_was_verified(figures: list[Figure]) -> None:
    """Under another title, as numbers; one verified iteration of two is enough for success."""
    plot_png(document(iterations=[iteration(k, success=None) for k in range(2)]))
    plot_png(document(iterations=[iteration(0, success=None), iteration(1, success=0.5)]))
    rewards, mixed = (figure.axes[0] for figure in figures)
    assert rewards.get_title(loc="left") == "Reward by iteration"
    assert _values(rewards.lines[0]) == pytest.approx([0.45, 0.45 + 0.4 / 24])
    assert rewards.get_ylim()[1] == pytest.approx((0.45 + 0.4 / 24) * 1.04)
    assert not [text for text in _ticks(rewards.yaxis) if "%" in text]
    assert mixed.get_title(loc="left") == "Rollout success by iteration"
    assert _values(mixed.lines[0])[1] == 0.5


def test_the_bars_of_the_overview_are_both_means_with_their_intervals(figures: list[Figure]) -> None:
    """All and three categories: the champion .2 left of the middle, the candidate .2 right, each .36 wide."""
    plot_png(document())
    _, axes = figures[0].axes
    assert axes.get_title(loc="left") == "Held-out success by category"
    sides = zip(
        axes.containers, (_CHAMPION_MEANS[:4], _CANDIDATE_MEANS[:4]), (CHAMPION, CANDIDATE), (-0.2, 0.2), strict=True
    )
    for bars, means, color, offset in sides:
        assert [bar.get_height() for bar in bars] == pytest.approx(means)
        assert [bar.get_center()[0] for bar in bars] == pytest.approx([k + offset for k in range(4)])
        assert [bar.get_width() for bar in bars] == pytest.approx([0.36] * 4)
        assert {to_hex(bar.get_facecolor()) for bar in bars} == {color}
    for spans, means, offset in zip(
        axes.collections, (_CHAMPION_MEANS[:4], _CANDIDATE_MEANS[:4]), (-0.2, 0.2), strict=True
    ):
        for index, (segment, mean) in enumerate(zip(spans.get_segments(), means, strict=True)):
            assert segment.tolist() == [
                pytest.approx([index + offset, mean - 0.06]), pytest.approx([index + offset, mean + 0.06]),
            ]  # fmt: skip
        assert (to_hex(spans.get_color()[0]), float(spans.get_linewidth()[0])) == (INK, 1.0)
    assert list(axes.get_xticks()) == [0, 1, 2, 3]
    assert _ticks(axes.xaxis) == ["all", "return", "missing", "charge"]
    assert {label.get_color() for label in axes.get_xticklabels()} == {INK}
    assert {label.get_color() for label in axes.get_yticklabels()} == {MUTED}
    assert axes.get_ylim() == pytest.approx((0.0, 1.02))
    assert _ticks(axes.yaxis)[-1] == "100%"


def test_the_legend_of_the_bars_stands_above_them_at_the_right(figures: list[Figure]) -> None:
    """Both names in one row, outside the axes."""
    plot_png(document())
    _, axes = figures[0].axes
    legend = axes.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["champion", "candidate"]
    box, inside = legend.get_window_extent(), axes.get_window_extent()
    assert box.y0 >= inside.y1
    assert box.x1 == pytest.approx(inside.x1, abs=6)
    first, second = (text.get_window_extent() for text in legend.get_texts())
    assert first.y0 == pytest.approx(second.y0, abs=1)
    assert first.x1 < second.x0


def test_bars_of_rewards_are_numbers(figures: list[Figure]) -> None:
    """No percent, and an axis that ends where the intervals do."""
    plot_png(document(evaluation=evaluation(metric="reward")))
    _, axes = figures[0].axes
    assert axes.get_title(loc="left") == "Held-out reward by category"
    assert not [text for text in _ticks(axes.yaxis) if "%" in text]
    assert axes.get_ylim()[1] != pytest.approx(1.02)


def test_an_overview_without_values_has_notes(figures: list[Figure]) -> None:
    """In grey, in the middle of the figure, without an axis."""
    plot_png(document(iterations=(), evaluation=None))
    training, heldout = figures[0].axes
    for axes, title, sentence in (
        (training, "Reward by iteration", "no iteration was trained"),
        (heldout, "Held-out scenarios", "no candidate was evaluated"),
    ):
        assert axes.get_title(loc="left") == title
        (text,) = axes.texts
        assert (text.get_text(), text.get_color(), text.get_position()) == (sentence, MUTED, (0.5, 0.5))
        box, inside = text.get_window_extent(), axes.get_window_extent()
        assert (box.x0 + box.x1) / 2 == pytest.approx((inside.x0 + inside.x1) / 2, abs=1)
        assert (box.y0 + box.y1) / 2 == pytest.approx((inside.y0 + inside.y1) / 2, abs=1)
        assert not axes.axison


def test_figures_beside_each_other_are_of_one_width_on_white(figures: list[Figure]) -> None:
    """Three of 2 in at 140 pixels an inch; the title is large and at the left; the corner is white."""
    picture = png("Three", *[lambda axes: draw_note(axes, "nothing")] * 3, width=2.0)
    (figure,) = figures
    assert list(figure.get_size_inches()) == [6.0, 4.0]
    pixels = matplotlib.image.imread(io.BytesIO(picture), format="png")
    assert pixels.shape[:2] == (560, 840)
    assert (pixels[0, 0] == 1).all()
    (title,) = [text for text in figure.texts if text.get_text() == "Three"]
    assert (title.get_fontsize(), title.get_ha(), title.get_position()[0]) == (12, "left", 0.015)
    boxes = [axes.get_window_extent() for axes in figure.axes]
    assert [box.width for box in boxes] == pytest.approx([boxes[0].width] * 3)
    assert boxes[0].x0 < boxes[1].x0 < boxes[2].x0
    assert b"Software" not in picture


def test_the_common_style_ends_with_the_figure() -> None:
    """Fonts and colours of other figures are unchanged."""
    before = dict(matplotlib.rcParams)
    png("One", lambda axes: draw_note(axes, "nothing"))
    svg("one", "One", lambda axes: draw_note(axes, "nothing"), (2.0, 1.0))
    assert dict(matplotlib.rcParams) == before


def _square(axes: Axes) -> None:
    """A line with a mark of its own and a text with markup in it."""
    axes.plot([0, 1], [0, 1], "o-", color=CANDIDATE, label="<b>$x$")
    axes.plot([0, 1], [1, 0], color="#123456")
    axes.figure.legend(loc="outside upper left")


def test_a_figure_is_one_svg_element_and_nothing_else() -> None:
    """Sized by its page, labelled for screen readers; no namespace, comment, style, metadata, or group's name."""
    drawing = svg("square", 'A "square" & more', _square, (2.0, 1.0))
    assert drawing.startswith('<svg viewBox="0 0 144 72" role="img" aria-label="A &quot;square&quot; &amp; more">')
    assert drawing.endswith("</svg>")
    for unwanted in ("xmlns", "xlink", "<!--", "<style", "<metadata", '<g id="', "<?xml", "DOCTYPE", "dc:date", "http"):
        assert unwanted not in drawing
    assert not re.search(r">\s+<(?!svg|/svg)", drawing.split("</defs>", 1)[1])


def test_the_marks_of_a_figure_are_found_by_its_links() -> None:
    """Each `href` leads to an identifier of the same figure; clip paths, too."""
    drawing = svg("square", "A square", _square, (2.0, 1.0))
    names = set(re.findall(r'\bid="([^"]+)"', drawing))
    links = re.findall(r'href="#([^"]+)"', drawing) + re.findall(r"url\(#([^)]+)\)", drawing)
    assert len(links) > 2
    assert set(links) <= names


def test_a_figure_takes_the_colours_of_the_page_and_keeps_all_others() -> None:
    """As text stays text, markup and dollars in it are characters; nothing is painted behind it."""
    drawing = svg("square", "A square", _square, (2.0, 1.0))
    assert f"stroke: var(--candidate, {CANDIDATE})" in drawing
    assert f"fill: var(--candidate, {CANDIDATE})" in drawing
    assert f"stroke: var(--line, {GRID})" in drawing
    assert "stroke: #123456" in drawing
    assert "&lt;b&gt;$x$" in drawing
    assert "#ffffff" not in drawing
    root = ElementTree.fromstring(drawing)
    assert "<b>$x$" in [text.text for text in root.iter("text")]


def test_a_figure_is_the_same_each_time_and_another_under_another_name() -> None:
    """Identifiers follow the name alone."""
    first, again, other = (svg(name, "A square", _square, (2.0, 1.0)) for name in ("a", "a", "b"))
    assert first == again
    assert first != other
    assert not set(re.findall(r'\bid="([^"]+)"', first)) & set(re.findall(r'\bid="([^"]+)"', other))


def test_a_figure_in_another_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matplotlib that wrote no `<svg>` with a viewBox would leave a page without figures."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **options: file.write("<svg></svg>"))
    with pytest.raises(ValueError, match=r"^figure square has no <svg> element with a viewBox\. Matplotlib writes"):
        svg("square", "A square", _square, (2.0, 1.0))
