"""`grpo verify-log`: compute the log-probabilities of served turns again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_cli.command import console, start_command
from grpo_local import settings

if TYPE_CHECKING:
    from grpo.policy.transformers.model import TransformersPolicy


def verify_log(
    model: Annotated[str, typer.Argument(help="Model that was served: models:/NAME@champion, a folder or org/name.")],
    log: Annotated[Path | None, typer.Option(help="Folder of the log. If left out, `served` in GRPO_HOME.")] = None,
    turns: Annotated[int, typer.Option(min=1, help="Number of turns that are drawn.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
) -> None:
    """Check that served turns were sampled by the versions that they name, by computing their log-probabilities again.

    Use it when you doubt a log before you train on it, e.g. because another server wrote it. Turns of all versions of a
    registered model are drawn. If a turn was sampled by other weights, the command ends with its version, its id and
    the difference.

    Example: grpo verify-log models:/support-desk@champion --turns 200
    """
    home = start_command()
    from grpo.learner.served_logprobs import check_served
    from grpo.log.folder import ServedLog
    from grpo.policy.catalog import load_weights
    from grpo.policy.weights.registered import REGISTERED
    from grpo_tasks.registry import registry

    name, is_registered = Path(model).name, model.startswith(REGISTERED)
    if is_registered:
        with settings.without_gc():
            name = registry().resolve(model).name

    def load(version: str) -> TransformersPolicy:
        return load_weights(f"{REGISTERED}{version}" if is_registered else model)

    records = ServedLog(log or home / "served").read()
    check = check_served(records, load, model=name, turns=turns, seed=seed)
    console.print(
        f"{check.turns} turns with {check.tokens} tokens: log-probabilities differ by up to {check.difference:.1e} nats"
    )
    for reason, count in check.unchecked.items():
        console.print(f"{count} turns were not checked: {reason}")
