"""Mixture of conversations and base scenarios in a given share; the held-out split is kept.

share 0.25 of conversations, 100 base and 30 conversations   →   90 base and 30 conversations
                             100 base and 60 conversations   →  100 base and 33 conversations
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from grpo.scenarios.scenario import Scenario, SplitName
from grpo.scenarios.split import MIN_CATEGORY_SIZE, assign_split
from grpo.scenarios.table import text_digest, write_scenarios
from grpo.storage.documents import Document


class MixtureCounts(Document):
    """Number of scenarios by kind and split."""

    base_train: int
    conversations_train: int
    base_heldout: int
    conversations_heldout: int


def mix(
    path: Path,
    *,
    base_train: Sequence[Scenario],
    base_heldout: Sequence[Scenario],
    conversations: Sequence[Scenario],
    new_ids: Collection[str],
    judged: Collection[str],
    trained: Collection[str],
    share: float,
    validation_fraction: float,
    seed: int,
) -> MixtureCounts:
    """Write the scenario table of a retraining, with declared splits.

    The text of a conversation determines its split, which is therefore the same in every retraining. Conversations in
    `new_ids` are used first, the others in an order drawn by the seed. Scenarios that the champion was evaluated on
    (`judged`, digests of texts) stay held out, those that its weights were trained on (`trained`) stay in training.
    """

    def split(scenario: Scenario, otherwise: SplitName) -> SplitName:
        digest = text_digest(scenario)
        if digest in trained:
            return "train"
        return "heldout" if digest in judged else otherwise

    def assigned(scenario: Scenario) -> SplitName:
        return assign_split(text_digest(scenario), declared=scenario.split, share=validation_fraction)

    placed: list[_Placed] = [
        *((scenario, split(scenario, "train"), False) for scenario in base_train),
        *((scenario, split(scenario, "heldout"), False) for scenario in base_heldout),
        *((scenario, split(scenario, assigned(scenario)), True) for scenario in conversations),
    ]
    chosen = _required_heldout(placed, trained)
    placed = [(item, "heldout" if text_digest(item) in chosen else name, kind) for item, name, kind in placed]
    parts = {
        (name, live): [item for item, *key in placed if key == [name, live]]
        for name in ("train", "heldout")
        for live in (False, True)
    }
    base, live = parts["train", False], parts["train", True]
    counts = _shares(len(base), len(live), share)
    order = _order(seed)
    train = [
        *sorted(base, key=order)[: counts[0]],
        *sorted(live, key=lambda item: (item.id not in new_ids, order(item)))[: counts[1]],
    ]
    heldout = [*parts["heldout", False], *parts["heldout", True]]
    declared = [(item, "train") for item in train] + [(item, "heldout") for item in heldout]
    write_scenarios(path, (item.model_copy(update={"split": name}) for item, name in declared))
    return MixtureCounts(
        base_train=counts[0],
        conversations_train=counts[1],
        base_heldout=len(parts["heldout", False]),
        conversations_heldout=len(parts["heldout", True]),
    )


_Placed = tuple[Scenario, SplitName, bool]
"""A scenario, its split, and True for a conversation."""


def _required_heldout(placed: Sequence[_Placed], trained: Collection[str]) -> set[str]:
    """Digests that must be held out so that each large category has a held-out scenario.

    For each category of `MIN_CATEGORY_SIZE` scenarios without one, the lowest digest that was never trained on.
    """
    held = {item.metadata.category for item, split, _ in placed if split == "heldout"}
    groups: dict[str, list[str]] = {}
    for item, split, _ in placed:
        if split == "train" and item.metadata.category not in held:
            groups.setdefault(item.metadata.category, []).append(text_digest(item))
    large = (group for group in groups.values() if len(group) >= MIN_CATEGORY_SIZE)
    return {digest for group in large for digest in sorted(set(group).difference(trained))[:1]}


def _shares(base: int, conversations: int, share: float) -> tuple[int, int]:
    """Numbers of base scenarios and conversations to use; with one kind only, all of it."""
    if not base or not conversations:
        return base, conversations
    if conversations <= share * (base + conversations):
        return max(1, round(conversations * (1 - share) / share)), conversations
    return base, max(1, round(base * share / (1 - share)))


def _order(seed: int) -> Callable[[Scenario], str]:
    return lambda scenario: hashlib.sha256(f"{seed}\0{scenario.id}".encode()).hexdigest()
