"""Generator of triage scenarios from a phrasebook. Its two splits share no wording."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from grpo.config.base import Settings
from grpo.config.loading import load_settings
from grpo.environments.support_desk.scenario_generator import choose_alternatives
from grpo.errors import DataError
from grpo.scenario import SplitName
from grpo.storage.shipped import shipped_folder

_REPEATS = 10_000
"""Draws of known scenarios in a row after which a team counts as exhausted."""
PHRASEBOOK = shipped_folder() / "scenarios" / "triage_phrasebook.yaml"


class Wordings(Settings):
    """Sentences of one split. In each, `[a|b|c]` is replaced by one of a, b and c."""

    scenarios: int = Field(ge=1)
    """Scenarios that are drawn."""
    vague_share: float = Field(ge=0, le=1)
    """Share of scenarios with an opening that shows no team."""
    items: tuple[str, ...]
    """Words for {item}."""
    frames: tuple[str, ...]
    """Messages around a {matter}."""
    vague: tuple[str, ...]
    """Openings that show no team."""
    matters: dict[str, tuple[str, ...]]
    """Sentences by team."""


class TriagePhrasebook(Settings):
    """Sentences of both splits."""

    train: Wordings
    """Sentences that the policy is trained on."""
    heldout: Wordings
    """Sentences that it is evaluated on."""

    @classmethod
    def load(cls, path: Path) -> TriagePhrasebook:
        """Read a phrasebook from YAML."""
        return load_settings(path, cls)


def triage_scenarios() -> Iterator[dict[str, Any]]:
    """Records of both splits from the shipped phrasebook, for a source of kind generator."""
    book = TriagePhrasebook.load(PHRASEBOOK)
    yield from draw_scenarios(book.train, split="train")
    yield from draw_scenarios(book.heldout, split="heldout")


def draw_scenarios(wordings: Wordings, *, split: SplitName, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Draw different scenarios, teams in turn. Raises `DataError` if the phrasebook has too few wordings."""
    rng, teams = random.Random(f"{seed}/{split}"), tuple(wordings.matters)
    drawn: set[tuple[str, ...]] = set()
    repeats = 0
    while len(drawn) < wordings.scenarios:
        index = len(drawn)
        team = teams[index % len(teams)]
        lines = _lines(wordings, team, rng, vague=rng.random() < wordings.vague_share)
        if lines in drawn:
            repeats += 1
            if repeats == _REPEATS:
                raise DataError(
                    f"{split}: only {index} different scenarios of {wordings.scenarios} found, none of team {team} in "
                    f"{repeats} draws. Add wordings of it, or lower scenarios"
                )
            continue
        repeats = 0
        drawn.add(lines)
        yield {
            "id": f"triage-{split}-{index:04d}",
            "topic": team,
            "domain": "customer_service",
            "user_responses": list(lines),
            "metadata": {
                "difficulty": "hard" if len(lines) > 1 else "easy",
                "category": team,
                "source": "triage",
                "licence": "Apache-2.0",
            },
            "split": split,
        }


def _lines(wordings: Wordings, team: str, rng: random.Random, *, vague: bool) -> tuple[str, ...]:
    """The customer's lines: the matter in a frame, or a vague opening and the matter."""
    item = rng.choice(wordings.items)
    matter = choose_alternatives(rng.choice(wordings.matters[team]), rng).replace("{item}", item)
    if vague:
        return choose_alternatives(rng.choice(wordings.vague), rng).replace("{item}", item), matter
    return (choose_alternatives(rng.choice(wordings.frames), rng).replace("{matter}", matter),)
