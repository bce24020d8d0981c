"""`grpo evaluate`: measure a model on held-out scenarios, or chat with it."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo.config.pipeline import PipelineConfig, load_config
from grpo.errors import AddressError, ConfigError, DataError, PolicyError
from grpo.storage.files import write_atomically
from grpo_flows.cli.command import console, start_command
from grpo_flows.cli.dry_runs import DryRunOption, print_outline, scratch_services
from grpo_flows.cli.errors import exit_codes
from grpo_flows.local import settings

if TYPE_CHECKING:
    from grpo.agents.multi_turn import MultiTurnAgent


def evaluate(
    config: Annotated[Path | None, typer.Argument(help="YAML file whose held-out scenarios are used.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="models:/NAME@champion, models:/NAME/3, a checkpoint, a model folder, org/name or file.gguf; the "
            "champion by default."
        ),
    ] = None,
    num_episodes: Annotated[int | None, typer.Option(min=1, help="Maximum number of episodes.")] = None,
    scenarios_file: Annotated[
        Path | None, typer.Option(help="Use these scenarios instead: .jsonl, .json, .parquet, .csv or .tsv.")
    ] = None,
    output_file: Annotated[Path | None, typer.Option(help="Path of the JSON document.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Chat with this model: as --model, or openai+https://… or stub://….")
    ] = None,
    message: Annotated[
        str | None, typer.Option(help="With --checkpoint: send one message, and print the reply.")
    ] = None,
    conversations: Annotated[
        Path | None,
        typer.Option("--input", help="With --checkpoint: a JSON list of user messages or conversations to reply to."),
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", help="section.key=value over the config, or key=value of the agent; may be repeated."),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Measure a model on held-out scenarios, or chat with it: interactively, with one message, or with a file.

    Example: grpo evaluate data/configs/quickstart.yaml --model data/models/desk_clerk --num-episodes 40

    Example: grpo evaluate --checkpoint data/models/desk_clerk --message "Hello, where is my order 1234?"
    """
    home = start_command(services=checkpoint is None or checkpoint.startswith("models:/"))
    options = tuple(override or ())
    with exit_codes(wrong_input=(AddressError, ConfigError, DataError, PolicyError)):
        _check_modes(config, model, num_episodes, scenarios_file, checkpoint, message, conversations)
        if checkpoint is not None:
            _chat(checkpoint, message, conversations, output_file, options)
            return
        assert config is not None
        pipeline = load_config(config, options)
        _check_files(pipeline, model, scenarios_file, num_episodes)
        path = output_file or home / pipeline.name / "evaluation.json"
        scenarios = None if scenarios_file is None else str(scenarios_file)
        if dry_run:
            with scratch_services():
                from grpo_flows.plans.evaluate import plan_evaluation

                print_outline(
                    console,
                    plan_evaluation(
                        pipeline, model=model, scenarios_file=scenarios, num_episodes=num_episodes, output=path
                    ),
                )
            return
        from grpo_flows.local.servers import prefect_server

        with prefect_server(home, meanwhile=partial(settings.import_packages, "grpo_flows.evaluate", "mlflow")) as url:
            from grpo_flows.cli.console import show_progress
            from grpo_flows.cli.display import print_evaluation
            from grpo_flows.evaluate import evaluate as flow

            console.print(f"evaluation {pipeline.name}: Prefect at {url}, records in {home}")
            with show_progress(console):
                document = flow(
                    pipeline,
                    model=model,
                    scenarios_file=scenarios,
                    num_episodes=num_episodes,
                    output_file=str(path),
                )
        print_evaluation(console, document)
        console.print(f"written to {path}", soft_wrap=True)


def _check_files(
    pipeline: PipelineConfig, model: str | None, scenarios_file: Path | None, episodes: int | None
) -> None:
    """Refuse missing scenarios and models before a server is started."""
    from grpo.artifacts import MANIFEST
    from grpo.policy.catalog import check_trainable
    from grpo.policy.weights.sources import model_plan
    from grpo.scenarios.sources import content_hash
    from grpo.scenarios.subset import select_scenarios

    selected = select_scenarios(pipeline, None if scenarios_file is None else str(scenarios_file), episodes)
    content_hash(selected.scenarios.sources)
    if model is not None and not model.startswith("models:/") and not Path(model, MANIFEST).is_file():
        check_trainable(model)
        model_plan(model)


def _check_modes(
    config: Path | None,
    model: str | None,
    num_episodes: int | None,
    scenarios_file: Path | None,
    checkpoint: str | None,
    message: str | None,
    conversations: Path | None,
) -> None:
    """Refuse options of the other mode."""
    measuring = {"CONFIG": config, "--model": model, "--num-episodes": num_episodes, "--scenarios-file": scenarios_file}
    chatting = {"--message": message, "--input": conversations}
    if config is None and checkpoint is None:
        raise ConfigError("name a CONFIG for its held-out scenarios, or a --checkpoint to chat with")
    unread = [name for name, value in (chatting if checkpoint is None else measuring).items() if value is not None]
    if unread:
        with_ = "without" if checkpoint is None else "with"
        raise ConfigError(f"{', '.join(unread)} is not read {with_} --checkpoint; leave it out")
    if message is not None and conversations is not None:
        raise ConfigError("--message and --input exclude each other; give one")


def _chat(
    checkpoint: str, message: str | None, conversations: Path | None, output: Path | None, options: tuple[str, ...]
) -> None:
    """Chat interactively, with one message, or with a file of conversations."""
    from grpo_flows.cli.chat import chat, read_conversations, reply_to_each

    if conversations is not None:
        parsed = read_conversations(conversations)
        replies = json.dumps(reply_to_each(_open_agent(checkpoint, options), parsed), ensure_ascii=False, indent=1)
        if output is None:
            typer.echo(replies)
        else:
            write_atomically(output, replies + "\n")
        return
    agent = _open_agent(checkpoint, options)
    if sys.stdin.isatty() and message is None:
        typer.echo("Type a message; Ctrl-D ends.", err=True)
    for reply in chat(agent, sys.stdin if message is None else [message]):
        typer.echo(reply)


def _open_agent(checkpoint: str, options: tuple[str, ...]) -> MultiTurnAgent:
    with settings.without_gc():
        from grpo_flows.cli.chat import open_agent

        return open_agent(checkpoint, options)
