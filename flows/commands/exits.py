"""How a command ends: 0 done, 1 failed, 2 wrong input, 3 a gate refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from grpo.credentials import masked
from grpo.errors import ConfigError, GRPOError, PromotionRefused

FAILED, WRONG_INPUT, REFUSED = 1, 2, 3


@contextmanager
def exits(*, wrong_input: type[GRPOError] | tuple[type[GRPOError], ...] = ConfigError) -> Iterator[None]:
    """Say what is wrong without a traceback; errors of the types `wrong_input` are the input's fault."""
    try:
        yield
    except GRPOError as error:
        shown = masked(str(error))
        Console(stderr=True).print(f"[red]{type(error).__name__}[/]: {shown}", highlight=False, soft_wrap=True)
        if isinstance(error, PromotionRefused):
            raise typer.Exit(REFUSED) from error
        raise typer.Exit(WRONG_INPUT if isinstance(error, wrong_input) else FAILED) from error
