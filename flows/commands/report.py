"""`grpo report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import console
from flows.commands.begin import begin
from grpo.errors import ConfigError


def report(
    run: Annotated[str, typer.Argument(help="Name of a run, or path of its report.json or its folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json itself, and write nothing.")] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show how a run ended, and draw its page again from report.json.

    Example: grpo report quickstart
    """
    home = begin(services=False)
    document_path = _find(run, home)
    from grpo.evaluation.report import read_report, write_report

    document = read_report(document_path)
    if as_json:
        typer.echo(document.model_dump_json(indent=1))
        return
    from flows.cli.display import print_summary

    page = write_report(document, document_path.parent, data_docs=None)[0]
    print_summary(console, document)
    console.print(f"report: {page}", soft_wrap=True)
    if show:
        typer.launch(page.as_uri())


def _find(run: str, home: Path) -> Path:
    """The report.json of a run of this home, or at a path."""
    for place in (Path(run), Path(run) / "report.json", home / run / "report.json"):
        if place.is_file():
            return place.resolve()
    known = sorted(path.parent.name for path in home.glob("*/report.json"))
    raise ConfigError(f"no report of {run!r} in {home}; there are {', '.join(known) or 'none'}")
