"""`grpo admit`."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.commands.arguments import console
from flows.commands.exits import REFUSED, exits
from grpo.config.yaml_file import assignment
from grpo.errors import GRPOError


def admit(
    reward: Annotated[str, typer.Argument(help="Name of a reward, of this package or of a plugin.")],
    option: Annotated[list[str] | None, typer.Option("--set", help="option=value; may be repeated.")] = None,
) -> None:
    """Try a reward on replies that deserve little, and show what it gives them; exit code 3 if one fools it.

    Example: grpo admit helpfulness
    """
    from flows.terminal import print_admission
    from grpo.rewards.admission import examine
    from grpo.rewards.catalog import reward_named

    with exits(wrong_input=GRPOError):
        findings = examine(reward_named(reward, **dict(map(assignment, option or ()))))
    print_admission(console, reward, findings)
    if any(finding.fooled for finding in findings):
        raise typer.Exit(REFUSED)
