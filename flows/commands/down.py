"""`grpo down`."""

from __future__ import annotations

from flows import settings
from flows.commands.arguments import console
from flows.commands.exits import exits


def down() -> None:
    """End what `grpo up` started; a run that is under way goes on after the next one.

    Example: grpo down
    """
    home = settings.apply()
    from flows.stack.machine import down as end

    with exits():
        for remark in end(home):
            console.print(remark)
