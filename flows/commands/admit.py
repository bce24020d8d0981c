"""`grpo check-reward`."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli.command import console
from flows.cli.errors import REFUSED, exits
from grpo.config.loading import parse_override
from grpo.errors import GRPOError


def admit(
    reward: Annotated[str, typer.Argument(help="Name of a reward, of this package or of a plugin.")],
    option: Annotated[list[str] | None, typer.Option("--set", help="option=value; may be repeated.")] = None,
) -> None:
    """Try a reward on replies that deserve little, and show what it gives them; exit code 3 if one fools it.

    Example: grpo check-reward helpfulness
    """
    from flows.cli.display import print_reward_check
    from grpo.rewards.catalog import reward_named
    from grpo.rewards.hacking.check import probe_reward

    with exits(wrong_input=GRPOError):
        findings = probe_reward(reward_named(reward, **dict(map(parse_override, option or ()))))
    print_reward_check(console, reward, findings)
    if any(finding.exploited for finding in findings):
        raise typer.Exit(REFUSED)
