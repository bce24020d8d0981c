"""Plain text in the terminal, and the progress of a run."""

from __future__ import annotations

import io
import logging

import pytest
from rich.table import Table

from grpo import progress
from grpo.errors import printable
from grpo_cli import console as console_module
from grpo_cli.console import PlainConsole, _OnceFilter, show_progress
from tests.clock import patch_time


@pytest.mark.parametrize(
    "text", ["pip install 'grpo-agent-framework[vllm]'", "[/x]", "[red]x[/]", ":smile:", "[link=http://x]y", "a\\[b]"]
)
def test_text_is_printed_as_it_is(text: str):
    """In a line and in a cell of a table."""
    shown = io.StringIO()
    console = PlainConsole(file=shown, width=100)
    console.print(text)
    table = Table("what")
    table.add_row(text)
    console.print(table)
    assert shown.getvalue().startswith(f"{text}\n")
    assert shown.getvalue().count(text) == 2


def test_control_characters_are_written_as_escapes():
    """Nothing in a name clears the screen; line breaks and letters of any language stay."""
    assert printable("a\x1b[2J\r\x00\udcff\nß日\t") == "a\\x1b[2J\\r\\x00\\udcff\nß日\t"


@pytest.mark.parametrize(
    ("logger", "message", "shown"),
    [
        (
            "prefect.task_runs",
            "Finished in state Failed('Task run encountered an exception AddressError: no model')",
            False,
        ),
        (
            "prefect.task_runs",
            "Task run failed with exception: AddressError('no model') - Retries are exhausted",
            False,
        ),
        ("prefect.flow_runs", "Encountered exception during execution: AddressError('no model')", False),
        ("prefect.flow_runs", "Crash detected! Request to the server timed out", False),
        ("prefect.task_runs", "Error encountered when computing cache key - result will not be persisted.", True),
        ("prefect.events.clients", "Unable to connect to 'ws://127.0.0.1:4200/api/events/in'.", True),
        ("grpo_tasks.train", "Finished in state of rest", True),
    ],
)
def test_the_final_log_lines_of_a_run_are_left_to_the_command(logger: str, message: str, shown: bool):
    """The command prints the error once, at its end; other records are shown."""
    record = logging.LogRecord(logger, logging.ERROR, "", 0, message, (), None)
    assert _OnceFilter().filter(record) is shown


def test_events_that_a_server_did_not_take_are_logged_once():
    """Each is retried for a minute; the first line has the address."""
    record = logging.LogRecord("prefect.events.clients", logging.WARNING, "", 0, "Unable to connect", (), None)
    once = _OnceFilter()
    assert [once.filter(record) for _ in range(3)] == [True, False, False]


def test_each_event_that_was_not_taken_is_not_a_traceback():
    """Prefect's thread logs one for each of them, on a logger with a handler of its own."""
    with show_progress(PlainConsole(file=io.StringIO())):
        logger = logging.getLogger("prefect._internal.concurrency")
        assert not logger.filter(logging.LogRecord(logger.name, logging.ERROR, "", 0, "failed to process", (), None))


def test_progress_shows_a_stage_whose_text_looks_like_markup():
    """A stage that is computed again is named with its reason, which may contain any text."""
    shown = io.StringIO()
    console = PlainConsole(file=shown, width=200)
    with show_progress(console):
        progress.report("train again: artifact [/x] is damaged", 1, 1)
    assert "train again: artifact [/x] is damaged 1/1" in shown.getvalue()


def test_without_a_terminal_a_long_stage_has_a_line_each_half_minute(monkeypatch: pytest.MonkeyPatch):
    """And the time left counts from the first rollout: 40 s of fine-tuning are not those of an iteration of 20 s."""
    now = [0.0]
    patch_time(monkeypatch, console_module, monotonic=lambda: now[0])
    shown = io.StringIO()
    with show_progress(PlainConsole(file=shown, width=200), iterations=3):
        for step in range(5):
            now[0] += 10
            progress.report("sft", step, 5, loss=1.0)
        progress.report("rollout", 0, 1)
        now[0] += 20
        progress.report("train", 3, 3, cached=0.0)
    assert shown.getvalue().splitlines() == [
        "sft 3/5 loss 1",
        "iteration 1 of 3: about 40 s left",
    ]


def test_with_debug_messages_the_start_of_a_stage_is_a_line(monkeypatch: pytest.MonkeyPatch):
    """Also within an iteration."""
    monkeypatch.setenv("GRPO_DEBUG", "1")
    shown = io.StringIO()
    with show_progress(PlainConsole(file=shown, width=200), iterations=2):
        progress.report("rollout", 0, 2)
        progress.report("rollout", 64, 128)
        progress.report("rollout", 2, 2, cached=0.0)
    assert shown.getvalue().splitlines() == ["rollout 0/2"]


def test_without_a_terminal_each_iteration_is_a_line():
    """Number, reward, success and loss, and time left; a stage outside of the iterations is a line as well.

    The reports are those of a run: a stage is announced, reports its units, and ends with its numbers.
    """
    shown = io.StringIO()
    with show_progress(PlainConsole(file=shown, width=200), iterations=2):
        for stage, units, numbers in [("ingest", 2, {"records": 40.0}), ("split", 1, {})]:
            progress.report(stage, 0, 1)
            progress.report(stage, units, units, **numbers)
            progress.report(stage, 1, 1, cached=0.0, **numbers)
        for loss, cached in ((0.5, 0.0), (0.25, 1.0)):
            progress.report("rollout", 0, 1)
            for done in range(1, 129):
                progress.report("rollout", done, 128)
            progress.report("rollout", 1, 1, cached=0.0)
            progress.report("score", 0, 1)
            progress.report("score", 1, 1, reward=0.25, success=0.5, cached=0.0)
            progress.report("train", 0, 1)
            progress.report("train", 3, 3, loss=loss, entropy=1.0)
            progress.report("train", 1, 1, cached=cached)
        progress.report("rollout", 0, 1)
        progress.report("rollout", 80, 80)
        progress.report("rollout", 1, 1, cached=1.0)
        progress.report("fetch", 5, 5)
    assert shown.getvalue().splitlines() == [
        "ingest: records 40",
        "split: done",
        "iteration 1 of 2: reward 0.25, success 0.5, loss 0.5, about 0 s left",
        "iteration 2 of 2: reward 0.25, success 0.5, loss 0.25, about 0 s left",
        "rollout: cached",
        "fetch 5/5",
    ]
