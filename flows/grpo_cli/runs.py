"""Commands for the records of runs: runs, report, show, explain."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from grpo.errors import ConfigError, DataError, printable
from grpo_cli.command import console, start_command


def report(
    run: Annotated[str, typer.Argument(help="Name of a run, or path of its report.json or its folder.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print report.json itself instead, and write nothing.")
    ] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Print the result of a run, and write its page again from report.json.

    Use it when a run has ended, to see the decision, its gates and the curves. With --open it opens the page.

    Example: grpo report quickstart
    """
    home = start_command(services=False)
    document_path = _find_report(run, home)
    from grpo.evaluation.report import read_report, write_report

    document = read_report(document_path)
    if as_json:
        typer.echo(document.model_dump_json(indent=1))
        return
    from grpo_cli.display import print_summary

    page = write_report(document, document_path.parent, data_docs=None)[0]
    print_summary(console, document)
    console.print(f"report: {page}", soft_wrap=True)
    if show:
        typer.launch(page.as_uri())


def runs(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    nights: Annotated[
        bool,
        typer.Option(
            "--nights", help="List the retrainings of the last days on Prefect's server, and the days without one."
        ),
    ] = False,
    days: Annotated[int, typer.Option(min=1, max=366, help="Number of days that --nights shows.")] = 30,
) -> None:
    """List the runs of GRPO_HOME with their results, the newest first.

    Use it when you look for the name of a run. With --nights it asks the Prefect server for the retrainings of every
    worker: one row per run, and one for each day on which none was planned to start.

    Example: grpo runs

    Example: grpo runs --nights --days 14
    """
    home = start_command(services=nights)
    if nights:
        _print_nights(home, days, as_json=as_json)
        return
    from grpo.evaluation.report import read_report
    from grpo_cli.display import print_runs

    reports = []
    for folder in home.glob("*/"):
        if not os.access(folder, os.R_OK | os.X_OK):
            typer.echo(printable(f"{folder} may not be read. If it has a run, the run is left out"), err=True)
    for path in home.glob("*/report.json"):
        try:
            reports.append(read_report(path))
        except DataError as error:
            typer.echo(printable(f"{path} is left out: {error}"), err=True)
    reports.sort(key=lambda document: document.created, reverse=True)
    if as_json:
        rows = [
            document.model_dump(mode="json", include={"name", "created", "decision", "wall_s"}) for document in reports
        ]
        typer.echo(json.dumps(rows, indent=1))
    elif reports:
        print_runs(console, reports)
    else:
        console.print(f"no runs in {home}", soft_wrap=True)


def show(
    run: Annotated[str, typer.Argument(help="Name of a run, or path of its report.json or its folder.")],
    conversations: Annotated[
        bool,
        typer.Option("--conversations", help="Print the selected conversations instead of a table of their numbers."),
    ] = False,
    scenario: Annotated[str | None, typer.Option(help="Id of a scenario.")] = None,
    category: Annotated[str | None, typer.Option(help="Category of the scenarios.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="Lowest total reward.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="Highest total reward.")] = None,
    outcome: Annotated[
        Literal["success", "failure", "truncated", "turn_limit", "failed"] | None,
        typer.Option(help="Verified outcome or stop reason of the episodes."),
    ] = None,
    policy: Annotated[
        Literal["before", "after"] | None,
        typer.Option(
            help="Held-out episodes of the champion or base (before) or of the candidate (after). If left out, both."
        ),
    ] = None,
    iteration: Annotated[
        int | None, typer.Option(min=0, help="Training rollouts of this iteration, numbered as in the report.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most scenarios to print.")] = 5,
) -> None:
    """Show the episodes of a run: their numbers, or with --conversations the conversations as plain text.

    Use it when you want to read the conversations behind a number of the report. For each scenario, the held-out
    episodes before and after the training are printed one below the other, also if only one matches the options.

    Example: grpo show quickstart --conversations --outcome failure --policy after
    """
    home = start_command(services=False)
    if policy is not None and iteration is not None:
        raise ConfigError(
            "--policy selects held-out episodes, and --iteration episodes of the training. Leave one of them out"
        )
    from grpo.evaluation.recorded_episodes import EpisodeFilter, matched_episodes, read_part, recorded_parts
    from grpo.evaluation.report import read_report
    from grpo_cli.conversations import print_conversations, print_episodes

    selects = EpisodeFilter(
        scenario=scenario, category=category, min_reward=min_reward, max_reward=max_reward, outcome=outcome
    )
    document = read_report(_find_report(run, home))
    recorded = tuple(record.part for record in recorded_parts(document))
    named = policy if iteration is None else iteration
    if not conversations:
        parts = recorded if named is None else (named,)
        rows = [(_name(part), [t for t in read_part(document, part) if selects(t)]) for part in parts]
        print_episodes(console, rows, title=f"episodes of run {document.name}")
        return
    both: tuple[Literal["before", "after"], ...] = ("before", "after")
    sides = both if named is None else (named,)
    matched = list(matched_episodes([read_part(document, side) for side in sides], selects))
    for row in matched[:limit]:
        print_conversations(console, [(_name(side), episode) for side, episode in zip(sides, row, strict=True)])
    shown = min(limit, len(matched))
    console.print(f"{shown} of {len(matched)} scenarios and samples that match. --limit N prints more", soft_wrap=True)


def explain(
    run: Annotated[str, typer.Argument(help="Name of a run, or path of its report.json or its folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Explain why a run does not learn: what was measured, what it means, what to change, and the command to try it.

    The metrics and stored episodes of the run are checked for causes. The most certain is printed first.

    Example: grpo explain quickstart
    """
    home = start_command(services=False)
    from grpo.diagnosis.explain import explain as explain_run
    from grpo.evaluation.report import read_report
    from grpo_cli.explanation import print_explanation

    document = read_report(_find_report(run, home))
    explanation = explain_run(document)
    if as_json:
        typer.echo(explanation.model_dump_json(indent=1))
    else:
        print_explanation(console, document, explanation)


def _print_nights(home: Path, days: int, *, as_json: bool) -> None:
    from grpo_cli.display import print_nights
    from grpo_local.nights import read_nights
    from grpo_local.run_checks import open_api
    from grpo_local.servers import prefect_server

    with prefect_server(home) as url, open_api(url, home) as client:
        rows = read_nights(client, days)
    if as_json:
        typer.echo(json.dumps([row.model_dump(mode="json") for row in rows], indent=1))
    elif rows:
        print_nights(console, rows)
    else:
        console.print(
            f"Prefect's server has no retraining of the last {days} days. `grpo up` or `grpo deploy` sets its schedule",
            soft_wrap=True,
        )


def _name(part: str | int) -> str:
    return f"iteration {part}" if isinstance(part, int) else part


def _find_report(run: str, home: Path) -> Path:
    """Path of report.json of a run of this home, or of a run at a path."""
    for path in (Path(run), Path(run) / "report.json", home / run / "report.json"):
        if path.is_file():
            return path.resolve()
    known = sorted(path.parent.name for path in home.glob("*/report.json"))
    raise ConfigError(f"no report of run {run!r} in {home}. Runs with a report: {', '.join(known) or 'none'}")
