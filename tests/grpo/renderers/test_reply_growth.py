"""Time of parsing a reply, by its length: a model writes it, and the server parses it on its event loop."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from grpo.renderers.chat_template import Renderer
from grpo.renderers.python_calls import PythonCalls
from grpo.renderers.reply_format import HERMES, Progress
from grpo.renderers.tool_formats import Marks
from tests.grpo.renderers import published
from tests.grpo.renderers.test_reply_format import CALLS, KEPT, family_renderer

LENGTH = 20_000  # characters
FAST_S = 0.05
"""A reply that is parsed within this time is not measured again: the square takes longer."""


def _grows(work: Callable[[int], None], length: int) -> bool:
    """Check that four times the length takes more than nine times as long, in CPU time of the thread."""

    def seconds(size: int) -> float:
        start = time.thread_time()
        work(size)
        return time.thread_time() - start

    if min(seconds(length) for _ in range(2)) < FAST_S:
        return False
    short, long = (min(seconds(size) for _ in range(3)) for size in (length // 2, 2 * length))
    return long > 9 * short


def _units(text: str) -> list[str]:
    """Beginnings of a call, pieces of it with what may stand around them, and white space."""
    marks = re.findall(r"<[^<>]+>|\[|\w+\(|[{}\])>:,;]", text)
    opening = text[: re.search(r"look_up|\{", text).start()]  # type: ignore[union-attr]
    closing = text[len(text) - len(re.search(r"[^}\])3\"']*$", text)[0]) :]  # type: ignore[index]
    units = [*marks, opening, text, f"`{opening}`", f"{opening}{{", f"{opening}{{}}{closing}", f"{opening}x{closing}"]
    units += [text[: len(text) * part // 8] for part in range(1, 8)]
    units += [
        " ",
        "\n",
        f"{text}   ",
        f"{text}; ",
        "{ ",
        "[ ",
        "<|a|>",
        '{"name": ',
        "<think>",
        "</think>",
        "</tool_call>",
    ]
    return list(dict.fromkeys(filter(None, units)))


@pytest.mark.parametrize(("name", "text"), [*CALLS.items(), *KEPT.items()])
def test_twice_the_reply_takes_twice_the_time(name: str, text: str):
    """Of no repeated piece of a call, alone and after a call, four times the reply takes nine times as long."""
    renderer = family_renderer(name)

    def parse(before: str, unit: str, after: str) -> Callable[[int], None]:
        return lambda length: (renderer.parse_text(before + unit * (length // len(unit)) + after), None)[1]

    slow = [
        (before, unit)
        for unit in _units(text)
        for before, after in (("", "\0"), (text, "\0"), (text[: len(text) // 2], "\0"))
        if _grows(parse(before, unit, after), LENGTH)
    ]
    assert slow == []


@pytest.mark.parametrize(
    "unit", ["<tool_call>", "<tool_call>{}</tool_call>", '<tool_call>{"name": "f"}', "`<tool_call>`"]
)
def test_a_reply_of_markers_is_parsed_in_time_that_grows_with_its_length(unit: str):
    """The form that environments describe; 8,000 markers took 9 seconds."""
    assert not _grows(lambda length: (HERMES.parse(unit * (length // len(unit)), ()), None)[1], 4 * LENGTH)


@pytest.mark.parametrize("unit", ["[f(", "[f(x=1)", "[f(x=1)]", "f(x=1) ", "[f(x=1)] x"])
def test_calls_in_python_without_a_marker_are_parsed_in_such_time(unit: str):
    """A list of calls may end with any bracket of the rest."""
    form = PythonCalls(Marks(opening="[", between=None, closing="]"))
    assert not _grows(lambda length: (form.parse("[f(x=1)" + unit * (length // len(unit)), ()), None)[1], LENGTH)


def test_malformed_calls_above_the_limit_are_content():
    """Of 70 malformed calls and a good one: the good one is not read; of 10, it is."""
    good = '<tool_call>{"name": "f"}</tool_call>'
    many, few = (HERMES.parse("<tool_call>{x</tool_call>" * count + good) for count in (70, 10))
    assert many.tool_calls == ()
    assert many.malformed is not None
    assert many.content == "<tool_call>{x</tool_call>" * 70 + good
    assert [call.name for call in few.tool_calls] == ["f"]


@pytest.mark.parametrize("name", CALLS)
def test_a_stream_of_twice_the_length_takes_twice_the_time(name: str):
    """What was searched for calls is not searched again with the next piece of the reply."""
    renderer = Renderer(published.of_family(name), tools=())
    begun = "<think>x</think>" if renderer.reasons else ""

    def stream(length: int) -> None:
        progress, text = Progress(), begun
        for _ in range(length // 20):
            text += "words of a < reply, "
            renderer.settled_content(text, progress)

    assert not _grows(stream, 2 * LENGTH)
