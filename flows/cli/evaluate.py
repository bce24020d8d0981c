"""`grpo evaluate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import console
from flows.cli.errors import exits
from flows.commands.begin import begin
from grpo.config.pipeline import PipelineConfig, load_config
from grpo.errors import AddressError, ConfigError, DataError, PolicyError
from grpo.storage.files import write_atomically


def evaluate(
    config: Annotated[Path | None, typer.Argument(help="YAML file whose held-out scenarios are played.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="models:/NAME@champion, models:/NAME/3, a checkpoint or a model folder; the champion if none."
        ),
    ] = None,
    num_episodes: Annotated[int | None, typer.Option(min=1, help="Play at most so many episodes.")] = None,
    scenarios_file: Annotated[
        Path | None, typer.Option(help="Play these scenarios instead: .jsonl, .json, .parquet, .csv or .tsv.")
    ] = None,
    output_file: Annotated[Path | None, typer.Option(help="Where the JSON document goes.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Talk to this model instead: as --model, or openai+https://… or stub://….")
    ] = None,
    message: Annotated[str | None, typer.Option(help="With --checkpoint: say this, and print the reply.")] = None,
    conversations: Annotated[
        Path | None,
        typer.Option("--input", help="With --checkpoint: a JSON list of lines, or of lists of messages, to answer."),
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", help="section.key=value over the config, or key=value of the agent; may be repeated."),
    ] = None,
) -> None:
    """Measure a model on held-out scenarios, or talk to it: line by line, with one message, or with a file of them.

    Example: grpo evaluate data/configs/quickstart.yaml --model data/models/desk_clerk --num-episodes 40

    Example: grpo evaluate --checkpoint data/models/desk_clerk --message "Hello, where is my order 1234?"
    """
    home = begin(services=checkpoint is None or checkpoint.startswith("models:/"))
    options = tuple(override or ())
    with exits(wrong_input=(AddressError, ConfigError, DataError, PolicyError)):
        _check_modes(config, model, num_episodes, scenarios_file, checkpoint, message, conversations)
        if checkpoint is not None:
            _talk(checkpoint, message, conversations, output_file, options)
            return
        assert config is not None
        plan = load_config(config, options)
        _check_files(plan, model, scenarios_file, num_episodes)
        from flows.local.servers import prefect_server

        with prefect_server(home) as url:
            from flows.cli.display import live, print_measurement
            from flows.evaluate import evaluate as flow

            console.print(f"evaluation {plan.name}: Prefect at {url}, records in {home}")
            path = output_file or home / plan.name / "evaluation.json"
            with live(console):
                document = flow(
                    plan,
                    model=model,
                    scenarios_file=None if scenarios_file is None else str(scenarios_file),
                    num_episodes=num_episodes,
                    output_file=str(path),
                )
        print_measurement(console, document)
        console.print(f"written to {path}", soft_wrap=True)


def _check_files(plan: PipelineConfig, model: str | None, scenarios_file: Path | None, episodes: int | None) -> None:
    """Refuse scenarios and a model that are not there, before a server is started."""
    from grpo.artifacts import MANIFEST
    from grpo.policy.catalog import model_folder
    from grpo.scenarios.sources import content_hash
    from grpo.scenarios.subset import select_scenarios

    asked = select_scenarios(plan, None if scenarios_file is None else str(scenarios_file), episodes)
    content_hash(asked.scenarios.sources)
    if model is not None and not model.startswith("models:/") and not Path(model, MANIFEST).is_file():
        model_folder(model)


def _check_modes(
    config: Path | None,
    model: str | None,
    num_episodes: int | None,
    scenarios_file: Path | None,
    checkpoint: str | None,
    message: str | None,
    conversations: Path | None,
) -> None:
    """Refuse options that the chosen mode does not read."""
    played = {"CONFIG": config, "--model": model, "--num-episodes": num_episodes, "--scenarios-file": scenarios_file}
    talked = {"--message": message, "--input": conversations}
    if config is None and checkpoint is None:
        raise ConfigError("name a CONFIG whose held-out scenarios are played, or a --checkpoint to talk to")
    unread = [name for name, value in (talked if checkpoint is None else played).items() if value is not None]
    if unread:
        with_ = "without" if checkpoint is None else "with"
        raise ConfigError(f"{', '.join(unread)} is not read {with_} --checkpoint; leave it out")
    if message is not None and conversations is not None:
        raise ConfigError("--message and --input exclude each other; give one")


def _talk(
    checkpoint: str, message: str | None, conversations: Path | None, output: Path | None, options: tuple[str, ...]
) -> None:
    """The three ways of talking to a model."""
    from flows.cli.chat import answer, converse, open_agent, read_conversations

    if conversations is not None:
        asked = read_conversations(conversations)
        answered = json.dumps(answer(open_agent(checkpoint, options), asked), ensure_ascii=False, indent=1)
        if output is None:
            typer.echo(answered)
        else:
            write_atomically(output, answered + "\n")
        return
    agent = open_agent(checkpoint, options)
    if sys.stdin.isatty() and message is None:
        typer.echo("Say something; Ctrl-D ends.", err=True)
    for reply in converse(agent, sys.stdin if message is None else [message]):
        typer.echo(reply)
