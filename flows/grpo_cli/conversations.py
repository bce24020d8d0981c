"""Recorded conversations as plain text.

Texts of users, tools and the policy are untrusted. Each of their lines is indented, so that none looks like a heading,
and the console escapes control characters.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from grpo.trajectories import Trajectory

_HEADINGS = {"before": "before (champion or base)", "after": "after (candidate)"}


def print_episodes(console: Console, rows: Sequence[tuple[str, Sequence[Trajectory]]], *, title: str) -> None:
    """Print one row per part of a run: number of episodes and scenarios, mean reward, success, and stop reasons."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("rollouts", no_wrap=True)
    for heading in ("episodes", "scenarios", "reward", "success", "failure", "truncated", "turn limit", "failed"):
        table.add_column(heading, justify="right")
    for name, episodes in rows:
        rewards = [reward for episode in episodes if (reward := episode.total_reward) is not None]
        counts = (
            len(episodes),
            len({episode.scenario_id for episode in episodes}),
            f"{statistics.fmean(rewards):.3f}" if rewards else "",
            sum(episode.success is True for episode in episodes),
            sum(episode.success is False for episode in episodes),
            sum(episode.stop == "truncated" for episode in episodes),
            sum(episode.stop == "turn_limit" for episode in episodes),
            sum(episode.stop == "failed" for episode in episodes),
        )
        table.add_row(name, *map(str, counts))
    console.print(table)
    console.print("before: the champion or base, after: the candidate, both on the held-out scenarios", soft_wrap=True)


def print_conversations(console: Console, row: Sequence[tuple[str, Trajectory | None]]) -> None:
    """Print the conversations of one scenario, one under the other."""
    first = next(trajectory for _, trajectory in row if trajectory is not None)
    console.print(
        f"=== scenario {_one_line(first.scenario_id)}, sample {first.sample}, category {_one_line(first.category)}, "
        f"difficulty {_one_line(first.difficulty)}",
        soft_wrap=True,
    )
    for name, trajectory in row:
        heading = _HEADINGS.get(name, name)
        if trajectory is None:
            console.print(f"--- {heading}: no such episode", soft_wrap=True)
            continue
        for line in conversation_lines(trajectory, heading):
            console.print(line, soft_wrap=True)
    console.print()


def conversation_lines(trajectory: Trajectory, heading: str) -> Iterator[str]:
    """Lines of one conversation: policy, reward, outcome and stop reason, then the turns."""
    reward = "none" if trajectory.total_reward is None else f"{trajectory.total_reward:.4g}"
    parts = ", ".join(f"{_one_line(name)} {value:.4g}" for name, value in trajectory.breakdown.items())
    yield f"--- {heading}, policy {' → '.join(trajectory.policies)}"
    if trajectory.branch is not None:
        yield f"branches off from sample {trajectory.branch.sample} after {trajectory.branch.tokens} tokens"
    yield f"reward {reward}" + (f" ({parts})" if parts else "")
    yield f"outcome {_outcome(trajectory)}. Stop {trajectory.stop}" + (
        f": {_one_line(trajectory.error)}" if trajectory.error else ""
    )
    for message in trajectory.messages:
        yield f"  {message.role}:"
        for label, text in (("", message.content), ("reasoning: ", message.reasoning or "")):
            if text:
                yield from _indented(label + text)
        for call in message.tool_calls:
            arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
            yield from _indented(f"call {call.name} {arguments}")
        if message.malformed:
            yield from _indented(f"malformed call: {message.malformed}")


def _outcome(trajectory: Trajectory) -> str:
    verdict = {True: "success", False: "failure", None: "not verified"}[trajectory.success]
    checks = {} if trajectory.outcome is None else trajectory.outcome.checks
    shown = ", ".join(f"{_one_line(name)} {'yes' if passed else 'no'}" for name, passed in checks.items())
    return verdict + (f" ({shown})" if shown else "")


def _indented(text: str) -> list[str]:
    """Lines of a text, each indented by four spaces. An empty text has no lines."""
    return [f"    {line}" for line in text.split("\n")]


def _one_line(text: str) -> str:
    return " ".join(text.split())
