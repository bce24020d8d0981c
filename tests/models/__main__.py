"""`make models` examines each family in a process of its own, prints its row, and keeps it in docs/internals/models.md.

`python -m tests.models llama qwen3` examines these alone, and the page keeps the others.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import mlflow.transformers  # noqa: F401  imported once, not in the process of each family
import torch
import transformers
from transformers.utils import logging as transformers_logging

from grpo_local import settings
from tests.benchmarks.page import here
from tests.models.examine import examine
from tests.models.families import families, unbuildable, variants, wrappers
from tests.models.page import Row, keep
from tests.models.survey import open_registry

LIMIT_S = 240
"""Time of one family."""


def _send(family: str, registry: Path, pipe: Connection) -> None:
    pipe.send(examine(family, registry=registry))


def _create(registry: Path) -> None:
    open_registry(registry).experiment("models")


def survey(names: Sequence[str], *, registry: Path) -> Iterator[Row]:
    """Rows of the families; one that crashes or exceeds its time is a row with that error."""
    context = multiprocessing.get_context("fork")  # imports take longer than most families
    first = context.Process(target=_create, args=(registry,))
    first.start()
    first.join()
    for family in names:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send, args=(family, registry, sender))
        process.start()
        sender.close()
        row = _receive(family, receiver)
        process.kill()
        process.join()
        yield row


def _receive(family: str, pipe: Connection) -> Row:
    if not pipe.poll(LIMIT_S):
        return Row(family=family, errors={"rollout": f"takes longer than {LIMIT_S} s"})
    try:
        row: Row = pipe.recv()
    except EOFError:
        return Row(family=family, errors={"rollout": "ends the process"})
    return row


def main() -> None:
    """Examine the families that were named, or all of them and their variants."""
    known = (*families(), *variants(), *wrappers())
    if unknown := sorted(set(sys.argv[1:]) - set(known)):
        raise SystemExit(f"no tiny model of {', '.join(unknown)}; there are {', '.join(known)}")
    transformers_logging.set_verbosity_error()
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    where = here()
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(settings.home_variables(Path(home)))
        settings.apply()
        for row in survey(sys.argv[1:] or known, registry=Path(home)):
            keep(row, unbuildable(), version=transformers.__version__, measured=where)
            sys.stdout.write(row.text())
            sys.stdout.flush()


if __name__ == "__main__":
    main()
