"""`grpo evaluate`: measure a model on held-out scenarios, or chat with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo.errors import AddressError, ConfigError, DataError, PolicyError, printable
from grpo_cli.command import console, start_command
from grpo_cli.dry_runs import DryRunOption, print_outline, scratch_services
from grpo_cli.errors import exit_codes
from grpo_local import settings

if TYPE_CHECKING:
    from grpo.config.pipeline import PipelineConfig
    from grpo.messages import Message


def evaluate(
    config: Annotated[
        str | None,
        typer.Argument(
            help="YAML file of a run. A measurement uses its held-out scenarios, and a chat (--checkpoint) its tools."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model to measure: models:/NAME@champion, models:/NAME/3, a checkpoint, a model folder, org/name or "
            "file.gguf. If left out, the champion."
        ),
    ] = None,
    num_episodes: Annotated[int | None, typer.Option(min=1, help="Maximum number of episodes.")] = None,
    scenarios_file: Annotated[
        str | None,
        typer.Option(help="Scenarios to measure on instead of those in CONFIG: .jsonl, .json, .parquet, .csv or .tsv."),
    ] = None,
    output_file: Annotated[Path | None, typer.Option(help="File for the result, a JSON document.")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Chat with this model instead of measuring one: an address as for --model, openai+https://… or "
            "stub://…."
        ),
    ] = None,
    message: Annotated[
        str | None, typer.Option(help="With --checkpoint: send this message, print the reply and end.")
    ] = None,
    conversations: Annotated[
        Path | None,
        typer.Option(
            "--input", help="With --checkpoint: JSON file with a list of user messages or conversations to reply to."
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            help="With CONFIG and --checkpoint: id of the scenario with the data that the tools act on. If left "
            "out, the first."
        ),
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Setting to replace: section.key=value in CONFIG or, in a chat without CONFIG, key=value of the "
            "agent. Repeatable.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Measure a model on held-out scenarios, or chat with it: interactively, with one message, or with a file.

    Use it when you want the numbers of a model without training, or want to read its replies yourself. In a chat the
    environment of CONFIG answers the model's tool calls. If there is no CONFIG, nothing answers them, and a line on
    stderr says so.

    Example: grpo evaluate data/configs/quickstart.yaml --model data/models/desk_clerk --num-episodes 40

    Example: grpo evaluate --checkpoint data/models/desk_clerk --message "Hello, where is my order 1234?"

    Example: grpo evaluate data/configs/quickstart.yaml --checkpoint data/models/desk_clerk --message "My cup is broken"
    """
    home = start_command(services=checkpoint is None or checkpoint.startswith("models:/"))
    options = tuple(override or ())
    from grpo.config.pipeline import load_config

    with exit_codes(wrong_input=(AddressError, ConfigError, DataError, PolicyError)):
        _check_modes(
            {"CONFIG": config, "--model": model, "--num-episodes": num_episodes, "--scenarios-file": scenarios_file}
            | {"--dry-run": dry_run},
            {"--message": message, "--input": conversations, "--scenario": scenario},
            checkpoint=checkpoint,
        )
        if checkpoint is not None:
            described = None if config is None else load_config(config, options)
            _chat(checkpoint, described, scenario, message, conversations, output_file, options)
            return
        assert config is not None
        pipeline = load_config(config, options)
        path = output_file or home / pipeline.name / "evaluation.json"
        if dry_run:
            _print_plan(pipeline, model, scenarios_file, num_episodes, path)
        else:
            _measure(home, pipeline, model, scenarios_file, num_episodes, path)


def _print_plan(
    pipeline: PipelineConfig, model: str | None, scenarios_file: str | None, num_episodes: int | None, path: Path
) -> None:
    """Print what a measurement would do and write, without running it."""
    with scratch_services():
        from grpo_flows.plans.evaluate import plan_evaluation

        print_outline(
            console,
            plan_evaluation(
                pipeline, model=model, scenarios_file=scenarios_file, num_episodes=num_episodes, output=path
            ),
        )


def _measure(
    home: Path,
    pipeline: PipelineConfig,
    model: str | None,
    scenarios_file: str | None,
    num_episodes: int | None,
    path: Path,
) -> None:
    """Measure a model on the held-out scenarios, print the numbers, and write them to `path`."""
    _check_files(pipeline, model, scenarios_file, num_episodes)
    from grpo_local.servers import prefect_server

    load = partial(settings.import_packages, "grpo_flows.evaluate", "mlflow", *settings.LEARNER)
    with prefect_server(home, while_starting=load) as url:
        from grpo_cli.console import show_progress
        from grpo_cli.display import print_evaluation
        from grpo_flows.evaluate import evaluate as flow

        console.print(f"evaluation {pipeline.name}: Prefect at {url}, records in {home}")
        with show_progress(console):
            document = flow(
                pipeline,
                model=model,
                scenarios_file=scenarios_file,
                num_episodes=num_episodes,
                output_file=str(path),
            )
    print_evaluation(console, document)
    console.print(f"written to {path}", soft_wrap=True)


def _check_files(pipeline: PipelineConfig, model: str | None, scenarios_file: str | None, episodes: int | None) -> None:
    """Refuse missing scenarios, models and options of the user's objects before a server is started."""
    from grpo.scenarios.subset import select_scenarios
    from grpo_local.preflight import check_evaluation

    selected = select_scenarios(pipeline, scenarios_file, episodes)
    check_evaluation(selected, model, whole=scenarios_file is not None, depth="files")


def _check_modes(measuring: Mapping[str, object], chatting: Mapping[str, object], *, checkpoint: str | None) -> None:
    """Refuse options of the other mode. CONFIG belongs to both modes."""
    config, scenario = measuring["CONFIG"], chatting["--scenario"]
    if config is None and checkpoint is None:
        raise ConfigError(
            "there is nothing to evaluate. Name a CONFIG to measure a model on its held-out scenarios, or name a model "
            "to chat with by --checkpoint"
        )
    other = chatting if checkpoint is None else measuring
    unread = [name for name, value in other.items() if name != "CONFIG" and value not in (None, False)]
    if unread:
        names = ", ".join(unread)
        if checkpoint is None:
            raise ConfigError(f"{names} can be used only in a chat. Add --checkpoint MODEL, or leave out {names}")
        raise ConfigError(
            f"{names} can be used only in a measurement, and --checkpoint starts a chat. Leave one of the two out"
        )
    if chatting["--message"] is not None and chatting["--input"] is not None:
        raise ConfigError("--message and --input exclude each other. Give one")
    if scenario is not None and config is None:
        raise ConfigError(
            "--scenario names a scenario of a CONFIG, and there is no CONFIG. Name one, or leave --scenario out"
        )


def _chat(
    checkpoint: str,
    pipeline: PipelineConfig | None,
    scenario: str | None,
    message: str | None,
    conversations: Path | None,
    output: Path | None,
    options: tuple[str, ...],
) -> None:
    """Chat interactively, with one message, or with a file of conversations."""
    from grpo.storage.files import write_atomically
    from grpo_cli.chat import read_conversations, reply_to_each

    parsed = None if conversations is None else read_conversations(conversations)
    reply, chat = _open_chat(checkpoint, pipeline, scenario, options)
    if parsed is not None:
        replies = json.dumps(reply_to_each(reply, parsed), ensure_ascii=False, indent=1)
        if output is None:
            typer.echo(replies)
        else:
            write_atomically(output, replies + "\n")
        return
    if sys.stdin.isatty() and message is None:
        typer.echo("Type a message, or Ctrl-D to end.", err=True)
    for text in chat(sys.stdin if message is None else [message]):
        typer.echo(text)


def _open_chat(
    checkpoint: str, pipeline: PipelineConfig | None, scenario: str | None, options: tuple[str, ...]
) -> tuple[Callable[[Sequence[Message]], str], Callable[[Iterable[str]], Iterator[str]]]:
    """Functions that reply to a conversation and to lines, with the tools of a config, or without any."""
    with settings.without_gc():
        from grpo_cli import chat

        if pipeline is not None:
            from grpo_cli.tool_chat import open_tool_chat

            policy = chat.checkpoint_policy(checkpoint)
            tools = open_tool_chat(pipeline, checkpoint, policy, scenario, _remark)
            _remark(f"tool calls go to environment {pipeline.environment.kind}, in the world of {tools.scenario.id}")
            return tools.reply_to, tools.chat
        agent = chat.open_agent(checkpoint, options)

    def warned(reply: str) -> str:
        if calls := chat.unanswered_calls(agent, reply):
            _remark(f"nothing answers the tool call {'; '.join(calls)}. Name a CONFIG with an environment that does")
        return reply

    return (
        lambda conversation: warned(chat.reply_once(agent, conversation)),
        lambda lines: map(warned, chat.chat(agent, lines)),
    )


def _remark(text: str) -> None:
    """Print a line on stderr, apart from the replies."""
    typer.echo(printable(text), err=True)
