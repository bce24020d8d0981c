"""Commands before a run: init, doctor, ingest, check-reward."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from grpo.errors import BudgetError, ConfigError, GRPOError
from grpo_cli.command import QUICKSTART, Overrides, console, start_command
from grpo_cli.errors import FAILED, REFUSED, exit_codes
from grpo_local import settings


def init(
    path: Annotated[Path | None, typer.Argument(help="Folder to make or, with --reference, file to write.")] = None,
    reference: Annotated[
        bool,
        typer.Option(
            "--reference",
            help="Write a config with every setting instead of a project. If PATH is left out, config.yaml.",
        ),
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", help="With --reference: config with the settings to write. If left out, the quickstart."
        ),
    ] = None,
    override: Overrides = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Make a project that trains within two minutes: config, environment, agent, reward, scenarios, tests, deployment.

    Use it when you start with a task of your own. With --reference it writes no project but a config that has every
    setting with its description and default, and that can be run as it is.

    Example: grpo init shop
    """
    if reference:
        from grpo.config.base import with_paths_from
        from grpo.config.commented_yaml import commented_yaml
        from grpo.config.pipeline import load_config
        from grpo.storage.files import write_atomically

        file = path or Path("config.yaml")
        if file.exists() and not force:
            raise ConfigError(f"{file} exists. Name another file, or replace it with --force")
        pipeline = load_config(start or QUICKSTART, tuple(override or ()))
        write_atomically(file, commented_yaml(with_paths_from(pipeline, file.parent)))
        console.print(f"{file} written. Edit it, then: grpo train {file} --dry-run", soft_wrap=True)
        return
    if start is not None or override:
        raise ConfigError(
            "--from and --set change the config that --reference writes. Add --reference, or leave them out"
        )
    if path is None:
        raise ConfigError("the new project has no folder. Name one: grpo init shop")
    from grpo_cli.project import make_project

    make_project(path, force=force)
    console.print(f"{path} written. Next: cd {path} && grpo train grpo.yaml", soft_wrap=True)


SchemaName = Literal["config", "retrain", "tune", "scenario"]


def schema(name: Annotated[SchemaName, typer.Argument(help="Kind of file.")] = "config") -> None:
    """Print the JSON Schema of a config, or of one scenario, with which editors complete and check files.

    Use it when your editor should check a config while you type. In a YAML file the line
    `# yaml-language-server: $schema=schema.json` names the schema.

    Example: grpo schema scenario
    """
    from grpo_cli.project import schema_text

    typer.echo(schema_text(name), nl=False)


def doctor(
    config: Annotated[
        str | None, typer.Argument(help="YAML file of a run. If given, its requirements are checked as well.")
    ] = None,
    override: Overrides = None,
    store: Annotated[
        str | None,
        typer.Option(help="Artifact store to check. If left out, the config's, or `artifacts` in GRPO_HOME."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check this machine, its servers and stores, and show a remedy for each problem.

    Use it before the first run, or when a run failed for a reason outside of its config. If a run would fail, the exit
    code is 1. If a config is named, what it needs is checked as well.

    Example: grpo doctor --json

    Example: grpo doctor data/configs/quickstart.yaml
    """
    home = settings.apply()
    from grpo.config.pipeline import load_config
    from grpo_cli.display import print_checks
    from grpo_cli.doctor import run_checks

    pipeline = None if config is None else load_config(config, tuple(override or ()))
    report = run_checks(home, store or (pipeline.store if pipeline is not None else str(home / "artifacts")), pipeline)
    if as_json:
        typer.echo(report.model_dump_json(indent=1))
    else:
        print_checks(console, report)
    if not report.healthy:
        raise typer.Exit(FAILED)


def ingest(
    config: Annotated[
        str, typer.Argument(metavar="FILE", help="YAML file of a run, or a file or folder of scenarios or chats.")
    ],
    override: Overrides = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder for the tables and Data Docs. If left out, `ingest` in GRPO_HOME.")
    ] = None,
) -> None:
    """Read, validate and split the scenarios of a config without training, and show counts, examples and quarantine.

    Use it when you want to see what a run would train on. If the file is not YAML, the command guesses its format,
    and shows five scenarios, the records that it cannot read, and the settings to write into a config. If you name a
    folder, each file in it is a source.

    Example: grpo ingest data/configs/quickstart.yaml --folder runs/ingest

    Example: grpo ingest data/scenarios/support_desk.jsonl
    """
    home = start_command(services=False)
    folder = folder or home / "ingest"
    if not config.endswith((".yaml", ".yml")):
        from grpo_cli.ingestion import show_guess

        if override:
            raise ConfigError(f"--set changes a config, and {config} is not a YAML file. Leave --set out")
        show_guess(console, Path(config), folder)
        return
    from grpo.config.pipeline import load_config
    from grpo.scenarios import expectations, split
    from grpo.scenarios.ingest import QUARANTINE_FILE, SCENARIOS_FILE
    from grpo.scenarios.ingest import ingest as ingest_sources
    from grpo_cli.ingestion import print_counts, print_examples, print_quarantined

    scenarios = load_config(config, tuple(override or ())).scenarios
    folder.mkdir(parents=True, exist_ok=True)
    tables = folder / SCENARIOS_FILE, folder / QUARANTINE_FILE
    bound = scenarios.max_quarantined_fraction
    try:
        counts = ingest_sources(scenarios.sources, *tables, max_quarantined_fraction=bound)
    except BudgetError:
        print_quarantined(console, tables[1])
        raise
    print_counts(console, counts)
    print_examples(console, tables[0])
    print_quarantined(console, tables[1])
    docs = folder / "data_docs"
    suite = expectations.validate(tables[0], docs, validation_fraction=scenarios.validation_fraction)
    for warning in suite.warnings:
        console.print(f"  warning: {warning}")
    console.print(f"{len(suite.checks) - len(suite.warnings)} expectations hold. Report: {docs / suite.docs_index}")
    splits = split.split(tables[0], validation_fraction=scenarios.validation_fraction, limit=scenarios.limit)
    console.print(f"{len(splits.train)} scenarios to train on, {len(splits.heldout)} held out")


def check_reward(
    reward: Annotated[str, typer.Argument(help="Reward of this package or of a plugin, or module:name of your own.")],
    option: Annotated[
        list[str] | None, typer.Option("--set", help="Option of the reward, option=value. Repeatable.")
    ] = None,
) -> None:
    """Test a reward for reward hacking: score known exploits, and exit with code 3 if one of them pays off.

    Use it before you train with a reward of your own, because a run refuses a reward that an exploit fools.

    Example: grpo check-reward helpfulness
    """
    from grpo.config.loading import parse_override
    from grpo.rewards.catalog import make_named_reward
    from grpo.rewards.hacking.check import probe_reward
    from grpo.user_objects import make_importable
    from grpo_cli.display import print_reward_check

    make_importable(Path.cwd())
    with exit_codes(wrong_input=(GRPOError,)):
        results = probe_reward(make_named_reward(reward, **dict(map(parse_override, option or ()))))
    print_reward_check(console, reward, results)
    if any(result.exploited for result in results):
        raise typer.Exit(REFUSED)
