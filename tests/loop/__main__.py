"""`make loop`: a champion is served, its customers change, and it is retrained, promoted and swapped without a hand.

Writes docs/internals/loop.md and docs/internals/loop.png. `python -m tests.loop --home FOLDER` keeps the home.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from grpo.environments.support_desk.scenario_generator import Phrasebook, generate_scenarios
from grpo.scenario import Scenario
from tests.loop.customers import Customers
from tests.loop.page import write_page
from tests.loop.record import Record
from tests.loop.shop import LOG, MODEL, Shop, open_shop
from tests.places import ROOT

OLD_WORDS = ROOT / "data" / "scenarios" / "phrasebook_scenarios.yaml"
NEW_WORDS = ROOT / "tests" / "loop" / "new_product.yaml"
RETRAINING = "nightly"
WINDOW = 50
"""Customers who come at once."""
DAY = 3
"""Windows between two runs of the schedule."""
DAYS_BEFORE, DAYS_AFTER, WINDOWS_AT_END = 1, 6, 6
"""Days before the new product and after it, and windows in which the last version is measured."""
PAUSE_S = 15.0
"""Pause between two windows of customers while a retraining trains."""
SWAP_S = 8.0
"""Time in which the server looks for a new champion, and loads it."""
CHAMPION_ITERATIONS, RETRAINING_ITERATIONS = 18, 20


def champion_config(home: Path) -> dict[str, Any]:
    """The quickstart, shorter, with its artifacts in this home."""
    return {
        "name": "first",
        "seed": 7,
        "store": str(home / "artifacts"),
        "scenarios": {
            "sources": [{"kind": "jsonl", "path": "grpo://scenarios/support_desk.jsonl"}],
            "validation_fraction": 0.26,
            "limit": 160,
        },
        "policy": {"model": "grpo://models/desk_clerk"},
        "environment": {"kind": "support_desk"},
        "reward": [{"kind": "task_completion", "weight": 0.7}, {"kind": "checks", "weight": 0.3}],
        "rollout": {"scenarios": 32, "group_size": 8, "max_new_tokens": 32},
        "training": {
            "iterations": CHAMPION_ITERATIONS,
            "learning_rate": 5e-4,
            "lr_scheduler_type": "cosine",
            "groups_per_step": 8,
            "microbatch_tokens": 6144,
        },
        "evaluation": {"samples": 1},
        "registry": {"model_name": MODEL},
    }


def retraining_config(home: Path, pipeline: str) -> dict[str, Any]:
    """The champion's run again, on what was served."""
    return {
        "name": RETRAINING,
        "pipeline": pipeline,
        "overrides": [f"training.iterations={RETRAINING_ITERATIONS}", "evaluation.samples=3"],
        "conversations": [{"kind": "served", "path": str(home / LOG)}],
        "curation": {"licences": ["own"], "required_fields": ["user_responses", "world", "expected"]},
        "triggers": [
            {"kind": "topic_drift", "min_conversations": 100},
            {"kind": "live_reward", "metric": "rating", "drop": 0.1, "min_conversations": 200},
            {"kind": "new_conversations", "min_conversations": 300},
        ],
        "mixture": {"conversation_fraction": 0.8, "heldout_fraction": 0.8, "key_fraction": 0.8},  # the shop's own key
        "corrections": {"method": "sft", "learning_rate": 5e-4, "epochs": 4, "conversations_per_step": 8},
    }


def scenarios(words: Path, *, seed: int, prefix: str) -> Iterator[Scenario]:
    """Customers with these words."""
    return generate_scenarios(Phrasebook.load(words), seed=seed, prefix=prefix)


async def play(shop: Shop, *, seed: int) -> tuple[Record, int]:
    """Play the whole loop; returns its record, and the number of customers before the change."""
    record = Record()
    pipeline = shop.write("first", champion_config(shop.home))
    config = shop.write(RETRAINING, retraining_config(shop.home, pipeline))
    await shop.grpo("train", pipeline)
    record.note("version 1 is trained and promoted", shown=False)
    old, new = scenarios(OLD_WORDS, seed=seed, prefix="old"), scenarios(NEW_WORDS, seed=seed, prefix="new")
    with shop.server() as client:
        customers = Customers(client, MODEL, seed=seed)
        record.note("the server answers", shown=False)

        async def window(source: Iterator[Scenario]) -> None:
            async for visit in customers.visits(itertools.islice(source, WINDOW)):
                if record.visits and visit.version > max(past.version for past in record.visits):
                    record.note(f"version {visit.version} answers")
                record.visits.append(visit)

        async def night() -> None:
            await shop.grpo("retrain", config)
            report = shop.retraining(RETRAINING)
            record.reports.append(report)
            refused = report.verdict == "refuse"
            record.note(f"retraining: {report.verdict}", f"{report.version or ''} {report.reason}", shown=refused)

        async def day(source: Iterator[Scenario]) -> None:
            for _ in range(DAY):
                await window(source)
            await _meanwhile(shop, asyncio.create_task(night()), record, lambda: window(source))
            await asyncio.sleep(SWAP_S)

        for _ in range(DAYS_BEFORE):
            await day(old)
        changed_at = len(record.visits)
        record.note("a new product, new wording")
        for _ in range(DAYS_AFTER):
            await day(new)
        for _ in range(WINDOWS_AT_END):
            await window(new)
        await client.close()
    return record, changed_at


async def _meanwhile(
    shop: Shop, training: asyncio.Task[None], record: Record, window: Callable[[], Awaitable[None]]
) -> None:
    """Customers keep coming while a retraining trains, fewer of them."""
    pending = shop.home / RETRAINING
    noted = False
    while not training.done():
        if any(pending.glob("pending-*.json")):
            if not noted:
                record.note("a trigger has fired, training begins", shown=False)
                noted = True
            await window()
        await asyncio.wait([training], timeout=PAUSE_S)
    await training


def main() -> None:
    """Play the loop in a home of its own, and write its page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, help="home that is kept; a temporary one by default")
    parser.add_argument("--seed", type=int, default=17)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="grpo-loop-") as folder:
        home = (arguments.home or Path(folder)).resolve()
        home.mkdir(parents=True, exist_ok=True)
        with open_shop(home) as shop:
            record, changed_at = asyncio.run(play(shop, seed=arguments.seed))
    write_page(record, changed_at=changed_at, at_end=WINDOWS_AT_END * WINDOW)


if __name__ == "__main__":
    main()
