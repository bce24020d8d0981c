"""Branching rollouts: some episodes of a group go on from turns of others instead of from the start.

Group of 6 with `trees: 2`. Samples 0 and 1 are played from the start, and each is the root of a tree. Every other
sample begins with the tokens and the world of its root before one of the root's later turns, and plays on by itself.

    sample 0    A1 → A2 → A3 → A4        sample 1    A1 → A2 → A3
    sample 2         └ → A2 → A3         sample 3              └ → A3 → A4 → A5
    sample 4              └ → A3         sample 5         └ → A2

Branches share their beginnings, so that the same number of generated tokens gives more episodes, and episodes that part
at a state compare the turns taken there (Tree-GRPO, Ji et al., arXiv 2509.21240). Keys and values of a beginning are
read once. Each episode counts in its group with all its tokens, as in the paper: the credit of a shared turn comes from
all episodes that share it.

The turn is drawn after the root has ended, uniformly from its turns after the first. Roots with many turns therefore
have more beginnings of which a branch can be made. A root without a second turn, or one that failed, has none: its
branches are played from the start.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from typing import Protocol

from grpo.errors import ConfigError
from grpo.policy.policy import ForkableSession, Sampler, Session
from grpo.rollout.episode import BranchPoint
from grpo.trajectories import Trajectory


class Play(Protocol):
    """Runs one episode of a scenario, see `run_episode`."""

    async def __call__(
        self,
        sample: int,
        session: Session,
        *,
        start: BranchPoint | None = None,
        points: list[BranchPoint] | None = None,
    ) -> Trajectory:
        """Return the episode."""
        ...


def trees_of(group_size: int, trees: int) -> list[tuple[int, ...]]:
    """Samples of each tree, its root first: 6 samples in 2 trees are (0, 2, 4) and (1, 3, 5)."""
    return [tuple(range(root, group_size, trees)) for root in range(trees)]


async def play_tree(
    samples: Sequence[int],
    play: Play,
    sampler: Sampler,
    slots: asyncio.Semaphore,
    *,
    seeds: Sequence[int],
) -> list[Trajectory]:
    """Play the root, and then its branches if there are any. Returns the episodes in the order of `samples`.

    The `seeds` of the samples draw the turns at which they branch off.

    The root and one branch after the other use one of the `slots`, because they also use one slot of the KV cache. Each
    other branch waits for a slot of its own, or is played in the first one when that is free again.

    Raises `ConfigError` if the sampler reads messages, so that no conversation can begin with the tokens of another.
    """
    episodes: dict[int, Trajectory] = {}
    waiting: deque[tuple[int, BranchPoint | None, Session | None]] = deque()

    async def play_next() -> None:
        sample, start, fork = waiting.popleft()
        with closing(sampler.open() if fork is None else fork) as session:
            episodes[sample] = await play(sample, session, start=start)

    async def play_in_a_free_slot() -> None:
        async with slots:
            if waiting:
                await play_next()

    async with asyncio.TaskGroup() as group, slots:
        points: list[BranchPoint] = []
        with closing(sampler.open()) as session:
            root = episodes[samples[0]] = await play(samples[0], session, points=points if seeds[1:] else None)
            if root.stop == "failed":
                points.clear()
            starts = [_drawn(points, seed) for seed in seeds[1:]]
            # the longest first, because it takes over the slot of the KV cache
            for sample, start in sorted(zip(samples[1:], starts, strict=True), key=lambda pair: -_read(pair[1])):
                waiting.append((sample, start, _fork(session, _read(start))))
        for _ in range(len(waiting) - 1):
            group.create_task(play_in_a_free_slot())
        while waiting:
            await play_next()
    return [episodes[sample] for sample in samples]


def _drawn(points: Sequence[BranchPoint], seed: int) -> BranchPoint | None:
    return random.Random(seed).choice(points) if points else None


def _fork(session: Session, tokens: int) -> Session | None:
    """Conversation that begins with the first tokens of another, or None if it begins with none of them."""
    if not tokens:
        return None
    if not isinstance(session, ForkableSession):
        raise ConfigError("rollout.trees needs a policy that reads tokens. Leave it out, or take another policy")
    return session.fork(tokens)


def _read(start: BranchPoint | None) -> int:
    """Number of tokens that a session must have read to go on from here."""
    return 0 if start is None else start.transcript.read
