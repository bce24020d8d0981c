"""The explanation of a run in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grpo.evaluation.explanation import Explanation
from grpo.evaluation.schema import ReportDocument

_COLOURS = {"certain": "bold red", "likely": "bold yellow", "possible": "bold"}


def print_explanation(console: Console, document: ReportDocument, explanation: Explanation) -> None:
    """Print the diagnoses, the most certain first, then the measurements of the run."""
    decision = document.decision
    console.print(f"run {document.name}: {decision.verdict} – {decision.reason}", soft_wrap=True)
    if not explanation.diagnoses:
        console.print(Text(explanation.summary, "bold green"), soft_wrap=True)
    for number, diagnosis in enumerate(explanation.diagnoses, start=1):
        title = Text.assemble(
            f"\n{number}. {diagnosis.kind} (", (diagnosis.certainty, _COLOURS[diagnosis.certainty]), ")"
        )
        console.print(title)
        for name, text in (
            ("measured", diagnosis.measured),
            ("means", diagnosis.meaning),
            ("change", diagnosis.change),
            ("try", diagnosis.command),
        ):
            console.print(f"   {name:<8} {text}", soft_wrap=True)
    table = Table(title="\nmeasured, first iteration → last", title_justify="left", box=None, show_header=False)
    for name, value in explanation.measurements.items():
        table.add_row(name, value)
    console.print(table)
    for reason in explanation.unread:
        console.print(f"some records were not read, so that diagnoses may be missing: {reason}", soft_wrap=True)
