"""Display of an ingestion: counts of the sources, examples, and quarantined records."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from grpo.errors import DataError, printable

if TYPE_CHECKING:
    from grpo.scenarios.ingest import IngestCounts

SHOWN = 5
"""Number of examples, and of quarantined records, that are printed."""
_TURN_CHARS, _REASON_CHARS, _TOOLS = 100, 300, 5


def show_guess(console: Console, path: Path, folder: Path) -> None:
    """Read a file or a folder with guessed settings, and print counts, examples, quarantine and settings to paste."""
    from grpo.scenarios.guess import as_yaml, guess_sources, unread_columns
    from grpo.scenarios.ingest import QUARANTINE_FILE, SCENARIOS_FILE, ingest
    from grpo.scenarios.readers.huggingface import other_splits

    sources = guess_sources(path)
    folder.mkdir(parents=True, exist_ok=True)
    tables = folder / SCENARIOS_FILE, folder / QUARANTINE_FILE
    try:
        counts = ingest(sources, *tables, max_quarantined_fraction=1.0)
    except DataError:
        if tables[1].exists():
            print_quarantined(console, tables[1])
        raise
    print_counts(console, counts)
    print_examples(console, tables[0])
    print_quarantined(console, tables[1])
    if unread := list(dict.fromkeys(name for source in sources for name in unread_columns(source))):
        console.print(Text(f"columns that these settings do not read: {one_line(', '.join(unread))}"), soft_wrap=True)
    if splits := [name for source in sources for name in other_splits(source)]:
        console.print(f"splits that these settings do not read: {one_line(', '.join(splits))}", soft_wrap=True)
    console.print("settings for a config, which read these scenarios:")
    console.print(Text(printable(as_yaml(*sources)).rstrip()), soft_wrap=True)


def print_counts(console: Console, counts: IngestCounts) -> None:
    """Print the counts of each source and of all together, and the reasons of quarantine."""
    for source in counts.sources:
        users = f"{source.scripted} scripted, {source.goals} with a goal"
        parts = f"{users}; {source.with_tools} with tools, {source.with_replay} with a replay"
        totals = f"{source.records} records, {source.scenarios} scenarios ({parts}), {source.quarantined} quarantined"
        console.print(Text(f"{one_line(source.name)}: {totals}"), soft_wrap=True)
        for part, count in source.left_out.items():
            console.print(Text(f"  left out of {count} scenarios: {one_line(part)}"), soft_wrap=True)
    line = f"{counts.records} records: {counts.scenarios} scenarios, {counts.quarantined} quarantined"
    console.print(line, soft_wrap=True)
    for reason, count in counts.reasons.items():
        console.print(Text(f"  {count} × {one_line(reason)}"), soft_wrap=True)


def print_examples(console: Console, scenarios_path: Path) -> None:
    """Print the first scenarios: id, category, first turn of the user, tools."""
    from grpo.scenarios.table import read_scenarios

    for scenario in islice(read_scenarios(scenarios_path), SHOWN):
        opening = scenario.user_responses[0] if scenario.user_responses else scenario.goal
        names = [str(tool.get("name")) for tool in scenario.tools]
        tools = ", ".join([*names[:_TOOLS], *(["…"] if len(names) > _TOOLS else [])])
        heading = f"{scenario.id} [{scenario.metadata.category}]" + (f" tools: {tools}" if tools else "")
        console.print(Text(f"  {one_line(heading)}"), soft_wrap=True)
        kind = "user" if scenario.user_responses else "goal"
        console.print(Text(f"    {kind}: {one_line(opening, _TURN_CHARS)}"), soft_wrap=True)


def print_quarantined(console: Console, quarantine_path: Path) -> None:
    """Print the first quarantined records with their places and reasons."""
    from grpo.tables import open_parquet

    file = open_parquet(quarantine_path)
    count = file.metadata.num_rows
    if not count:
        return
    console.print(f"first of {count} quarantined, all in {quarantine_path}:", markup=False, soft_wrap=True)
    for row in next(file.iter_batches(batch_size=SHOWN, columns=["source", "line", "reason"])).to_pylist():
        reason = one_line(row["reason"], _REASON_CHARS)
        console.print(Text(f"  {one_line(row['source'])}:{row['line']}  {reason}"), soft_wrap=True)


def one_line(text: str, limit: int = 200) -> str:
    """A foreign text as one line, shortened, and `printable`."""
    shown = printable(" ".join(text[: limit + 1].split()))
    return shown if len(text) <= limit else f"{shown[:limit]}…"
