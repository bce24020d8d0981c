"""What is trained on: conversations and base scenarios in a given share, with the held-out split kept as it is.

share 0.25 of conversations, 100 base and 30 conversations   →   90 base and 30 conversations
                             100 base and 60 conversations   →  100 base and 33 conversations
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from grpo.scenarios.scenario import Scenario, SplitName
from grpo.scenarios.split import MIN_CATEGORY_SIZE, assign_split
from grpo.scenarios.table import text_digest, write_scenarios


class MixtureCounts(BaseModel):
    """Scenarios of each kind on each split."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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
    """Write the table of a retraining, every scenario with its split declared.

    A conversation's own text decides its split, as it does for any scenario, so that it is on the same split in every
    retraining. Of conversations those whose ids are in `fresh` are used first, else chance decides, from the seed. What
    the champion was judged on (`judged`, digests of texts) is held out, and what its weights have been trained on
    (`trained`) is not, whatever the settings say now.
    """

    def split(scenario: Scenario, otherwise: SplitName) -> SplitName:
        digest = text_digest(scenario)
        if digest in trained:
            return "train"
        return "heldout" if digest in judged else otherwise

    def own_side(scenario: Scenario) -> SplitName:
        return assign_split(text_digest(scenario), declared=scenario.split, share=validation_fraction)

    placed: list[_Placed] = [
        *((scenario, split(scenario, "train"), False) for scenario in base_train),
        *((scenario, split(scenario, "heldout"), False) for scenario in base_heldout),
        *((scenario, split(scenario, own_side(scenario)), True) for scenario in conversations),
    ]
    chosen = _first_judges(placed, trained)
    placed = [(one, "heldout" if text_digest(one) in chosen else found, kind) for one, found, kind in placed]
    parts = {
        (which, live): [one for one, found, kind in placed if (found, kind) == (which, live)]
        for which in ("train", "heldout")
        for live in (False, True)
    }
    base, live = parts["train", False], parts["train", True]
    counts = _shares(len(base), len(live), share)
    order = _order(seed)
    train = [
        *sorted(base, key=order)[: counts[0]],
        *sorted(live, key=lambda one: (one.id not in new_ids, order(one)))[: counts[1]],
    ]
    heldout = [*parts["heldout", False], *parts["heldout", True]]
    declared = [(one, "train") for one in train] + [(one, "heldout") for one in heldout]
    write_scenarios(path, (one.model_copy(update={"split": which}) for one, which in declared))
    return MixtureCounts(
        base_train=counts[0],
        conversations_train=counts[1],
        base_heldout=len(parts["heldout", False]),
        conversations_heldout=len(parts["heldout", True]),
    )


_Placed = tuple[Scenario, SplitName, bool]
"""A scenario, its split, and whether it is a conversation."""


def _first_judges(placed: Sequence[_Placed], trained: Collection[str]) -> set[str]:
    """Digests of what has to be held out for the split to take the mixture: in small numbers the text may choose none.

    Of each category that is big enough to be judged and has nothing held out, the lowest digest that no weights know.
    """
    held = {one.metadata.category for one, split, _ in placed if split == "heldout"}
    groups: dict[str, list[str]] = {}
    for one, split, _ in placed:
        if split == "train" and one.metadata.category not in held:
            groups.setdefault(one.metadata.category, []).append(text_digest(one))
    found = (sorted(set(group).difference(trained))[:1] for group in groups.values() if len(group) >= MIN_CATEGORY_SIZE)
    return {digest for group in found for digest in group}


def _shares(base: int, conversations: int, share: float) -> tuple[int, int]:
    """How many of each are used; without conversations, or without base scenarios, all of the others."""
    if not base or not conversations:
        return base, conversations
    if conversations <= share * (base + conversations):
        return max(1, round(conversations * (1 - share) / share)), conversations
    return base, max(1, round(base * share / (1 - share)))


def _order(seed: int) -> Callable[[Scenario], str]:
    return lambda scenario: hashlib.sha256(f"{seed}\0{scenario.id}".encode()).hexdigest()
