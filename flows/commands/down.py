"""`grpo down`."""

from __future__ import annotations

from flows.cli.command import console
from flows.commands.begin import begin


def down() -> None:
    """End what `grpo up` started; a run that is under way goes on after the next one.

    Example: grpo down
    """
    home = begin(services=False)
    from flows.local.stack import down as end

    for remark in end(home):
        console.print(remark)
