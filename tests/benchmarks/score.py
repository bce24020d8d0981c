"""Text rewards on 5 000 trajectories of three exchanges, on one core."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import yaml

from grpo.messages import Message
from grpo.rewards.catalog import make_named_reward
from grpo.rewards.composite import CompositeReward
from grpo.rewards.score import score
from grpo.trajectories import Trajectory, Turn
from tests.benchmarks.page import Findings, Table
from tests.doubles import make_trajectory
from tests.places import ROOT

TRAJECTORIES, SIBLINGS, EXCHANGES = 5_000, 8, 3
REWARDS = (
    ("keywords", "variety", "conciseness"),
    ("helpfulness",),
    ("customer_service", "helpfulness", "engagement"),
)


def _played() -> Iterator[Trajectory]:
    """Conversations of golden replies, no two alike: each reply has a number of its own."""
    rng = random.Random(0)
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "data" / "golden").glob("*.yaml"))]
    triples = [triple for text in texts for triple in yaml.safe_load(text)]
    replies = [triple[kind] for triple in triples for kind in ("good", "mid", "bad")]
    for index in range(TRAJECTORIES):
        said: list[Message] = []
        for _ in range(EXCHANGES):
            reply = f"{rng.choice(replies)} {rng.choice(replies)} Reference {rng.randint(10_000, 99_999)}."
            said.append(Message(role="user", content=rng.choice(triples)["user"]))
            said.append(Message(role="assistant", content=reply))
        turns = tuple(Turn(message=message, start=0, stop=1) for message in said)
        yield make_trajectory(scenario_id=f"s{index // SIBLINGS}", sample=index % SIBLINGS, turns=turns)


def measure() -> Findings:
    """Trajectories per CPU minute, by what is asked."""
    played = list(_played())
    spoken = sum(len(turn.message.content.split()) for one in played for turn in one.turns) / len(played)
    rows = []
    for names in REWARDS:
        reward = CompositeReward([(make_named_reward(name), 1 / len(names)) for name in names])
        began = time.process_time()
        for _ in score(iter(played), reward):
            pass
        rows.append((" + ".join(names), f"{60 * len(played) / (time.process_time() - began):,.0f}"))
    return Findings(
        title="Score",
        text=f"{TRAJECTORIES:,} trajectories of {EXCHANGES} exchanges, {spoken:.0f} words each, one core.",
        tables=(Table(head=("rewards", "trajectories per CPU minute"), rows=tuple(rows)),),
    )
