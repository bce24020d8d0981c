"""Published tasks that a model of 135 M parameters does not solve: success, and how far it gets.

    python -m tests.benchmarks.published               BFCL's multi-turn base and tau2's retail, into docs/tasks.md
    python -m tests.benchmarks.published --heldout 4   fewer held-out tasks, only printed

The base model SmolLM2-135M-Instruct plays held-out tasks of both. It plays BFCL's once more after supervised
fine-tuning on the published calls of other tasks, which are executed in the world of each task. tau2 publishes no
conversations to fine-tune on. One thread.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.contrib.datasets.bfcl_multi_turn import read_bfcl_multi_turn
from grpo.contrib.datasets.tau2_bench import read_tau2_bench
from grpo.environments.catalog import make_environment
from grpo.environments.environment import Environment
from grpo.errors import DataError
from grpo.learner.checkpoints import load_policy
from grpo.messages import Message, ToolCall
from grpo.policy.renderer import make_renderer
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.trajectories import Trajectory
from grpo_flows.pipeline import base_policy, starting_policies
from grpo_local import settings
from grpo_tasks.execution.executor import InProcessExecutor
from grpo_tasks.execution.stage import executed_by
from tests.benchmarks.page import Table, here, replace_results
from tests.benchmarks.tasks import PAGE
from tests.places import PUBLISHED, ROOT

MODEL = ROOT / ".models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
MAX_TURNS, MAX_NEW_TOKENS, MAX_CONTEXT = 20, 96, 8192
DEMONSTRATIONS = 16
HEADING = "## Tools of published benchmarks\n"
TEXT = (
    "Written by `python -m tests.benchmarks.published` ({here}). SmolLM2-135M-Instruct on held-out tasks, one episode "
    f"each at temperature 1, at most {MAX_TURNS} turns of {MAX_NEW_TOKENS} tokens. A task succeeds if the "
    "final state of the world and the answers of the tools equal those that the published calls lead to. The expected "
    "calls are the published ones. `prompt` is the median number of tokens that the model reads before its first "
    "reply. `calls` are replies with a well-formed call. `valid` is the number of these calls that a tool executed "
    "without an error. `cut off` counts the episodes that a limit of tokens ended."
)
HEAD = (
    "task",
    "policy",
    "held out",
    "prompt",
    "success",
    "first expected call made",
    "expected calls made",
    "calls",
    "valid",
    "cut off",
)


def playable(scenarios: Sequence[Scenario], environment: Environment) -> list[Scenario]:
    """Scenarios that the world can play."""

    def plays(scenario: Scenario) -> bool:
        try:
            asyncio.run(environment.check(scenario))
        except DataError:
            return False
        return True

    return [scenario for scenario in scenarios if plays(scenario)]


async def demonstration(scenario: Scenario, environment: Environment) -> dict[str, Any]:
    """Conversation in which the agent makes the published calls of each request, one per turn, and then reports that
    it is done."""
    state, calls, turn = await environment.reset(scenario), list(scenario.expected.calls), 0
    while not state.done:
        of_turn = [call for call in calls if call["turn"] == turn]
        actions = [
            Message(
                role="assistant",
                content="",
                tool_calls=(ToolCall(name=call["name"], arguments=call["arguments"]),),
            )
            for call in of_turn
        ]
        for action in (*actions, Message(role="assistant", content="Done.")):
            state = (await environment.step(state, action)).state
        turn += 1
    system = [{"role": "system", "content": state.context}]
    return {"messages": system + [message.to_template() for message in state.history]}


def config(folder: Path, demonstrations: Path | None) -> PipelineConfig:
    """The run's config: a model, an environment, and fine-tuning if there are demonstrations."""
    sections: dict[str, Any] = {
        "name": "published",
        "store": str(folder / "store"),
        "scenarios": {"sources": [{"kind": "jsonl", "path": str(folder / "scenarios.jsonl")}]},
        "policy": {"model": str(MODEL)},
        "environment": {"kind": "task", "max_turns": MAX_TURNS},
        "reward": [{"kind": "task_completion", "weight": 1.0}],
        "rollout": {"max_new_tokens": MAX_NEW_TOKENS, "max_context": MAX_CONTEXT, "turn_timeout_s": 3600},
        "training": {"microbatch_tokens": MAX_CONTEXT},
        "registry": {"model_name": "published"},
    }
    if demonstrations is not None:
        sections["sft"] = {
            "demonstrations": {"kind": "jsonl", "path": str(demonstrations)},
            "epochs": 1,
            "learning_rate": 2e-4,
            "conversations_per_step": 4,
        }
    return PipelineConfig.model_validate(sections)


def play(
    scenarios: Sequence[Scenario], run: PipelineConfig, environment: Environment
) -> Iterator[tuple[str, list[Trajectory]]]:
    """Episodes of the held-out tasks by the base, and after fine-tuning if the config has it."""
    with executed_by(InProcessExecutor()):
        policies = starting_policies(run, base_policy(run.policy, run.store))
    for name, checkpoint in zip(("base", "after SFT"), policies, strict=False):
        policy = load_policy(ArtifactStore(run.store), checkpoint.checkpoint)
        renderer = make_renderer(policy.tokenizer, tools=environment.tools, settings=run.policy.renderer)
        yield (
            name,
            collect(
                scenarios,
                policy,
                environment,
                renderer,
                run.rollout,
                group_size=1,
                temperature=1.0,
                run_seed=1,
                iteration="heldout",
            ),
        )


def row(task: str, policy: str, scenarios: Sequence[Scenario], played: Sequence[Trajectory]) -> tuple[str, ...]:
    """A row of the table: success, and the expected calls that the episodes made."""
    first, made, expected, calls, replies, valid = 0, 0, 0, 0, 0, 0
    for scenario, episode in zip(scenarios, played, strict=True):
        answers = [turn.message for turn in episode.turns if turn.message.role == "assistant"]
        results = [turn.message for turn in episode.turns if turn.message.role == "tool"]
        done = [(call.name, call.arguments) for message in answers for call in message.tool_calls]
        wanted = [(call["name"], call["arguments"]) for call in scenario.expected.calls]
        first += bool(wanted) and wanted[0] in done
        made += sum(call in done for call in wanted)
        expected += len(wanted)
        replies += len(answers)
        calls += sum(bool(message.tool_calls) for message in answers)
        valid += sum('"error"' not in message.content for message in results)
    return (
        task,
        policy,
        str(len(played)),
        f"{statistics.median(int(episode.loss_mask.argmax()) for episode in played):,.0f}",
        f"{sum(bool(episode.success) for episode in played)} of {sum(e.success is not None for e in played)}",
        f"{first} of {len(played)}",
        f"{made} of {expected}",
        f"{calls / replies:.0%} of {replies} replies",
        f"{valid} of {calls}",
        f"{sum(episode.is_cut_off for episode in played)}",
    )


def measure(heldout: int) -> Iterator[tuple[str, ...]]:
    """Rows of both benchmarks."""
    tasks = {
        "BFCL multi-turn base": read_bfcl_multi_turn(PUBLISHED / "bfcl_multi_turn"),
        "tau2 retail": read_tau2_bench(PUBLISHED / "tau2_bench", "retail"),
    }
    for task, records in tasks.items():
        with TemporaryDirectory() as name:
            folder, demonstrations = Path(name), None
            run = config(folder, None)
            environment = make_environment(run.environment)
            scenarios = playable([Scenario.model_validate(record.data) for record in records], environment)
            scenarios = [s for s in scenarios if environment.can_verify(s)]
            chosen = scenarios[:: len(scenarios) // heldout][:heldout]
            if task.startswith("BFCL"):
                others = [scenario for scenario in scenarios if scenario not in chosen]
                shown = others[:: len(others) // DEMONSTRATIONS][:DEMONSTRATIONS]
                lines = [json.dumps(asyncio.run(demonstration(scenario, environment))) for scenario in shown]
                demonstrations = folder / "demonstrations.jsonl"
                demonstrations.write_text("\n".join(lines) + "\n", encoding="utf-8")
            for policy, played in play(chosen, config(folder, demonstrations), environment):
                yield row(task, policy, chosen, played)


def main() -> None:
    """Measure, print each row when it is there, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heldout", type=int, default=12)
    options = parser.parse_args()
    settings.apply()
    torch.set_num_threads(1)
    rows = []
    for cells in measure(options.heldout):
        sys.stderr.write(f"{cells}\n")
        rows.append(cells)
    table = Table(head=HEAD, rows=tuple(rows))
    sys.stdout.write(table.markdown() + "\n")
    if options.heldout == parser.get_default("heldout"):
        replace_results(PAGE, HEADING, TEXT.format(here=here()), table)


if __name__ == "__main__":
    main()
