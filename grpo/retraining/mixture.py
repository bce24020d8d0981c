"""Mixture of conversations and base scenarios, in which each key and each user has a bounded share of both splits.

Whoever has an API key can send any number of conversations, with outcomes and categories of their own. Without bounds,
one key could decide what the candidate is trained on and judged by. The bounds are shares of a whole split, base
scenarios included, so that a deployment with only one key still works.

conversation_fraction 0.25, one conversation per key

    100 base and 30 conversations   →   90 base and 30 conversations
    100 base and 60 conversations   →  100 base and 33 conversations

key_fraction 0.25, all conversations of one key

    10 base and 2,000 conversations →   10 base and  3 conversations, 3 / 13; 4 would be 4 / 14
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from grpo.config.retraining import MixtureSettings
from grpo.scenario import Origin, Scenario, SplitName
from grpo.scenarios.split import MIN_CATEGORY_SIZE, assign_split
from grpo.scenarios.table import start_digest, write_scenarios
from grpo.storage.documents import Document

_NAMED = 20
"""Keys and users with the most conversations that the counts name."""
_SHOWN = 12
"""Digits of a hash in the counts."""


class OriginShare(Document):
    """Conversations of one key or user in both splits, with their shares of the whole splits."""

    name: str
    """First digits of the hash, or `unknown` without a key."""
    train: int
    heldout: int
    train_share: float
    heldout_share: float


class MixtureCounts(Document):
    """Number of scenarios by kind and split, and of the conversations that the bounds left out."""

    base_train: int
    conversations_train: int
    base_heldout: int
    conversations_heldout: int
    left_out: dict[str, int] = Field(default_factory=dict)
    """Conversations in neither split, by split and bound: `heldout, key_fraction`."""
    key_shares: tuple[OriginShare, ...] = ()
    """The 20 keys with the most conversations. If several keys sent a conversation, it counts for each."""
    user_shares: tuple[OriginShare, ...] = ()
    """The 20 users with the most conversations."""


def mix(
    path: Path,
    *,
    base_train: Sequence[Scenario],
    base_heldout: Sequence[Scenario],
    conversations: Sequence[Scenario],
    new_ids: Collection[str],
    judged: Collection[str],
    trained: Collection[str],
    settings: MixtureSettings,
    validation_fraction: float,
    seed: int,
) -> MixtureCounts:
    """Write the scenario table of a retraining, with declared splits.

    The start of a conversation determines its split, which is therefore the same in every retraining. If a bound
    leaves a conversation out of its split, it is in neither split. Keys take turns, so that many conversations of one
    key do not displace the conversations of other keys. Among the conversations of a key, those in `new_ids` come
    first, and within both parts the seed draws the order. Scenarios that the champion was evaluated on (`judged`,
    digests of starts) stay held out, and scenarios that its weights were trained on (`trained`) stay in training.
    """

    def split(scenario: Scenario, otherwise: SplitName) -> SplitName:
        digest = start_digest(scenario)
        if digest in trained:
            return "train"
        return "heldout" if digest in judged else otherwise

    base: list[_Placed] = [
        *((scenario, split(scenario, "train")) for scenario in base_train),
        *((scenario, split(scenario, "heldout")) for scenario in base_heldout),
    ]
    required = _required_heldout(base, trained)
    base = [(item, "heldout" if start_digest(item) in required else name) for item, name in base]
    live: list[_Placed] = []
    for item in map(_with_origin, conversations):
        assigned = assign_split(start_digest(item), declared=item.split, share=validation_fraction)
        live.append((item, split(item, assigned)))

    def part(items: Sequence[_Placed], name: SplitName) -> list[Scenario]:
        return [item for item, place in items if place == name]

    live_train, live_heldout = (_in_turns(part(live, name), new_ids, seed) for name in _SPLITS)
    train, heldout = part(base, "train"), part(base, "heldout")
    train_bounds = _Bounds("conversation_fraction", settings)
    live_train, left_train = train_bounds.choose(live_train, base=len(train))
    live_heldout, left_heldout = _Bounds("heldout_fraction", settings).choose(live_heldout, base=len(heldout))
    if live_train and not left_train:  # too few conversations: use only as much of the base as keeps their share
        train = sorted(train, key=lambda item: _drawn(item, seed))[: train_bounds.base_needed(live_train)]
    splits: dict[SplitName, list[Scenario]] = {"train": [*train, *live_train], "heldout": [*heldout, *live_heldout]}
    write_scenarios(path, (item.model_copy(update={"split": name}) for name, items in splits.items() for item in items))
    return MixtureCounts(
        base_train=len(train),
        conversations_train=len(live_train),
        base_heldout=len(heldout),
        conversations_heldout=len(live_heldout),
        left_out={
            f"{name}, {reason}": count
            for name, reasons in (("train", left_train), ("heldout", left_heldout))
            for reason, count in sorted(reasons.items())
        },
        key_shares=_shares(splits, lambda origin: origin.keys),
        user_shares=_shares(splits, lambda origin: (origin.user,) if origin.user else ()),
    )


_Placed = tuple[Scenario, SplitName]
_ROUNDING = 1e-9
"""Error of a product such as 0.07 · 100, which is 7.000000000000001."""
_SPLITS: tuple[SplitName, ...] = ("train", "heldout")


class _Bounds:
    """Bounds of the conversations of one split, as shares of the whole split."""

    def __init__(self, name: Literal["conversation_fraction", "heldout_fraction"], settings: MixtureSettings) -> None:
        self._name, self._fraction = name, float(getattr(settings, name))
        self._key, self._user = settings.key_fraction, settings.user_fraction

    def choose(self, conversations: Sequence[Scenario], *, base: int) -> tuple[list[Scenario], Counter[str]]:
        """Choose the first conversations that stay within the bounds next to `base` scenarios, and count the others.

        The search starts at the total with all conversations. The conversations that fit into a total make a smaller
        total, in which fewer fit. This repeats until all chosen conversations fit.

            10 base, 40 of one key, .25: 50 → 12 fit, 22 → 5 fit, 15 → 3 fit, 13 → 3 fit
        """
        total = base + len(conversations)
        while True:
            chosen, left_out = self._fitting(conversations, total)
            if base + len(chosen) >= total:
                return chosen, left_out
            total = base + len(chosen)

    def base_needed(self, chosen: Sequence[Scenario]) -> int:
        """Smallest number of base scenarios with which all of these conversations stay within the bounds."""
        keys, users = Counter[str](), Counter[str]()
        for item in chosen:
            origin = _origin(item)
            keys.update(origin.keys)
            users.update([origin.user] if origin.user else [])
        several = [count for count in users.values() if count > 1]
        least = (
            _least_total(len(chosen), self._fraction),
            _least_total(max(keys.values()), self._key),
            _least_total(max(several, default=0), self._user),
        )
        return max(*least, len(chosen) + 1) - len(chosen)

    def _fitting(self, conversations: Sequence[Scenario], total: int) -> tuple[list[Scenario], Counter[str]]:
        most, of_key = _most(total, self._fraction), _most(total, self._key)
        of_user = max(1, _most(total, self._user))
        keys, users = Counter[str](), Counter[str]()
        chosen: list[Scenario] = []
        left_out: Counter[str] = Counter()
        for item in conversations:
            origin = _origin(item)
            user = origin.user  # counted over all keys, because otherwise ten keys would give a user ten shares
            if len(chosen) >= most:
                left_out[self._name] += 1
            elif any(keys[key] >= of_key for key in origin.keys):
                left_out["key_fraction"] += 1
            elif origin.user and users[user] >= of_user:
                left_out["user_fraction"] += 1
            else:
                chosen.append(item)
                keys.update(origin.keys)
                users[user] += 1
        return chosen, left_out


def _most(total: int, share: float) -> int:
    return math.floor(share * total + _ROUNDING)


def _least_total(count: int, share: float) -> int:
    return math.ceil(count / share - _ROUNDING)


def _with_origin(scenario: Scenario) -> Scenario:
    """A conversation with its origin. If it has none, it gets the origin of an unknown key."""
    if scenario.metadata.origin is not None:
        return scenario
    return scenario.model_copy(update={"metadata": scenario.metadata.model_copy(update={"origin": Origin()})})


def _origin(conversation: Scenario) -> Origin:
    return conversation.metadata.origin or Origin()


def _required_heldout(base: Sequence[_Placed], trained: Collection[str]) -> set[str]:
    """Digests of base scenarios that must be held out so that each large category has a held-out scenario.

    If a category with at least `MIN_CATEGORY_SIZE` scenarios has none, it is the lowest digest that was never trained
    on. Conversations do not count, because clients choose their categories.
    """
    held = {item.metadata.category for item, split in base if split == "heldout"}
    groups: dict[str, list[str]] = {}
    for item, split in base:
        if split == "train" and item.metadata.category not in held:
            groups.setdefault(item.metadata.category, []).append(start_digest(item))
    large = (group for group in groups.values() if len(group) >= MIN_CATEGORY_SIZE)
    return {digest for group in large for digest in sorted(set(group).difference(trained))[:1]}


def _in_turns(conversations: Iterable[Scenario], new_ids: Collection[str], seed: int) -> list[Scenario]:
    """Conversations in turns of their keys: the first of each key, then the second of each."""

    def preference(item: Scenario) -> tuple[bool, str]:
        return item.id not in new_ids, _drawn(item, seed)

    turns: Counter[str] = Counter()
    ranked: list[tuple[int, Scenario]] = []
    for item in sorted(conversations, key=preference):
        key = _origin(item).keys[0]
        ranked.append((turns[key], item))
        turns[key] += 1
    return [item for _, item in sorted(ranked, key=lambda entry: (entry[0], preference(entry[1])))]


def _drawn(scenario: Scenario, seed: int) -> str:
    return hashlib.sha256(f"{seed}\0{scenario.id}".encode()).hexdigest()


def _shares(
    splits: Mapping[SplitName, Sequence[Scenario]], names: Callable[[Origin], Iterable[str]]
) -> tuple[OriginShare, ...]:
    """Shares of the origins with the most conversations."""
    counts = {
        split: Counter(name for item in items if item.metadata.origin for name in names(item.metadata.origin))
        for split, items in splits.items()
    }
    train, heldout = counts["train"], counts["heldout"]
    most = sorted(train | heldout, key=lambda name: (-train[name] - heldout[name], name))[:_NAMED]
    return tuple(
        OriginShare(
            name=name[:_SHOWN] or "unknown",
            train=train[name],
            heldout=heldout[name],
            train_share=train[name] / len(splits["train"]) if train[name] else 0.0,
            heldout_share=heldout[name] / len(splits["heldout"]) if heldout[name] else 0.0,
        )
        for name in most
    )
