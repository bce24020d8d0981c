"""Selection of held-out episode pairs, champion and candidate, for the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grpo.evaluation.schema import EpisodePair, ReportEpisode, ReportTurn
from grpo.trajectories import Trajectory

Decode = Callable[[Sequence[int]], str]


def select_pairs(
    champion: Sequence[Trajectory], candidate: Sequence[Trajectory], decode: Decode, *, count: int = 6
) -> tuple[EpisodePair, ...]:
    """Select the best change of each category, then the worst regression, then pairs in order, without randomness."""
    by_key = {(t.scenario_id, t.sample): t for t in candidate}
    pairs = [(t, by_key[t.scenario_id, t.sample]) for t in champion if (t.scenario_id, t.sample) in by_key]

    def change(pair: tuple[Trajectory, Trajectory]) -> float:
        before, after = ((t.total_reward if t.success is None else t.success) or 0 for t in pair)
        return float(after) - float(before)

    chosen: list[tuple[Trajectory, Trajectory]] = []
    for category in sorted({before.category for before, _ in pairs}):
        members = [pair for pair in pairs if pair[0].category == category]
        chosen.append(max(members, key=change))
    losses = sorted((pair for pair in pairs if change(pair) < 0), key=change)
    for pair in (*losses[:1], *pairs):
        if len(chosen) >= count:
            break
        if not any(pair[0] is shown[0] for shown in chosen):
            chosen.append(pair)
    return tuple(
        EpisodePair(
            scenario_id=before.scenario_id,
            sample=before.sample,
            category=before.category,
            difficulty=before.difficulty,
            champion=_report_episode(before, decode),
            candidate=_report_episode(after, decode),
        )
        for before, after in chosen[:count]
    )


def _report_episode(trajectory: Trajectory, decode: Decode) -> ReportEpisode:
    turns = []
    for turn in trajectory.turns:
        span = range(turn.start, turn.stop)
        sampled = len(span) > 0 and bool(trajectory.loss_mask[turn.start])
        turns.append(
            ReportTurn(
                role=turn.message.role,
                content=turn.message.content,
                tool_calls=tuple(map(str, turn.message.tool_calls)),
                pieces=tuple(decode([int(trajectory.token_ids[i])]) for i in span) if sampled else (),
            )
        )
    return ReportEpisode(
        policy=trajectory.policy_hash,
        turns=tuple(turns),
        stop=trajectory.stop,
        success=trajectory.success,
        checks={} if trajectory.outcome is None else dict(trajectory.outcome.checks),
        reward=trajectory.total_reward,
        breakdown=dict(trajectory.breakdown),
    )
