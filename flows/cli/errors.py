"""The end of a command: 0 done, 1 failed, 2 wrong input, 3 a gate refused."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import typer
from rich.text import Text

from flows.cli.console import PlainConsole, printable
from flows.failures import known_failure
from grpo.errors import AddressError, ConfigError, PromotionRefused
from grpo.storage.credentials import masked

P = ParamSpec("P")
R = TypeVar("R")

FAILED, WRONG_INPUT, REFUSED = 1, 2, 3
_ADDRESS = re.compile(r"\S+://\S+")
logger = logging.getLogger(__name__)


def bounded(command: Callable[P, R]) -> Callable[P, R]:
    """The command, whose failures are one line and an exit code."""

    @functools.wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with exits():
            return command(*args, **kwargs)

    return call


@contextmanager
def exits(*, wrong_input: tuple[type[Exception], ...] = (ConfigError, AddressError)) -> Iterator[None]:
    """Print a failure that is understood as one line; errors of the types `wrong_input` are the input's fault.

    What is not understood is a fault of this project, and keeps its traceback.
    """
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        failure = known_failure(error)
        if failure is None:
            raise
        logger.debug("the command ends by", exc_info=error)
        message = _ADDRESS.sub(lambda address: masked(address[0]), str(failure))
        line = Text.assemble((type(failure).__name__, "red"), ": ", printable(message))
        PlainConsole(stderr=True).print(line, soft_wrap=True)
        if isinstance(failure, PromotionRefused):
            raise typer.Exit(REFUSED) from error
        raise typer.Exit(WRONG_INPUT if isinstance(failure, wrong_input) else FAILED) from error
