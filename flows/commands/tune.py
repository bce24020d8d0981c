"""`grpo tune`."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli.command import ConfigFile, Overrides, console
from flows.commands.begin import begin


def tune(
    config: ConfigFile,
    override: Overrides = None,
    trials: Annotated[int | None, typer.Option(help="Trials that the study is to have in all.")] = None,
    parallel: Annotated[int | None, typer.Option(help="Trials that run at once.")] = None,
    storage: Annotated[
        str | None, typer.Option(help="sqlite:///PATH or postgresql://user@host/database; the password in PGPASSWORD.")
    ] = None,
) -> None:
    """Search for settings of a run, and write the best as a config for `grpo train`.

    The same command goes on with a study that was interrupted.

    Example: grpo tune data/configs/tune.yaml --trials 20
    """
    home = begin()
    from grpo.config.loading import load_settings
    from grpo.config.tuning import TuneConfig

    given = {"n_trials": trials, "parallel": parallel, "storage": storage}
    said = [f"{name}={value}" for name, value in given.items() if value is not None]
    plan = load_settings(config, TuneConfig, (*(override or ()), *said))
    from flows.local.servers import prefect_server

    with prefect_server(home) as url:
        from flows.cli.display import live, print_study
        from flows.tune import tune as flow
        from grpo.tuning.document import DOCUMENT, StudyDocument

        console.print(f"study {plan.name}: Prefect at {url}, records in {home}")
        with live(console):
            tuned = flow(plan)
        document = StudyDocument.model_validate_json((home / plan.name / DOCUMENT).read_bytes())
        print_study(console, document.study)
        console.print(f"best config: {tuned.config}", soft_wrap=True)
        console.print(f"report: {tuned.report}", soft_wrap=True)
