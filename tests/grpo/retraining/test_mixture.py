from __future__ import annotations

from pathlib import Path

import pytest

from grpo.retraining.mixture import MixtureCounts, mix
from grpo.scenarios.scenario import Metadata, Scenario
from grpo.scenarios.split import assign_split, split
from grpo.scenarios.table import read_scenarios, text_digest


def scenarios(prefix: str, count: int, split: str | None = None) -> list[Scenario]:
    return [Scenario(id=f"{prefix}-{k}", user_responses=(f"{prefix} number {k}",), split=split) for k in range(count)]


def mixed(path: Path, base: int, live: int, share: float, **changes: object) -> tuple[MixtureCounts, list[Scenario]]:
    given = {
        "base_train": scenarios("base", base),
        "base_heldout": scenarios("heldout", 7),
        "conversations": scenarios("live", live, split="train"),
        "new_ids": (),
        "judged": (),
        "trained": (),
        "share": share,
        "validation_fraction": 0.25,
        "seed": 1,
        **changes,
    }
    return mix(path, **given), list(read_scenarios(path))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("base", "live", "share", "expected"),
    [
        (100, 30, 0.25, (90, 30)),  # 30 / 120
        (100, 60, 0.25, (100, 33)),  # 33 / 133
        (100, 100, 0.5, (100, 100)),
        (100, 0, 0.5, (100, 0)),
        (0, 40, 0.5, (0, 40)),
        (100, 1, 0.9, (1, 1)),  # a kind that is there is never left out
    ],
)
def test_the_scarcer_kind_is_used_whole(tmp_path: Path, base: int, live: int, share: float, expected: tuple[int, int]):
    """Conversations have their share of the training split, and everything held out of the base stays."""
    counts, written = mixed(tmp_path / "m.parquet", base, live, share)
    assert (counts.base_train, counts.conversations_train) == expected
    assert counts.base_heldout == sum(one.split == "heldout" for one in written) == 7
    assert sum(one.split == "train" for one in written) == sum(expected)


def test_fresh_conversations_are_used_first_and_the_seed_decides_the_rest(tmp_path: Path):
    """Of 20 conversations 10 find room: the 4 new_ids ones, and 6 that another seed would choose differently."""
    new_ids = {"live-1", "live-5", "live-11", "live-19"}

    def chosen(seed: int) -> set[str]:
        _, written = mixed(tmp_path / f"{seed}.parquet", 10, 20, 0.5, new_ids=new_ids, seed=seed)
        return {one.id for one in written if one.id.startswith("live")}

    assert len(chosen(1)) == 10
    assert new_ids <= chosen(1) & chosen(2)
    assert chosen(1) == chosen(1) != chosen(2)


def test_the_text_of_a_conversation_determines_its_split(tmp_path: Path):
    """The same in every retraining: one that was held out is never trained on later."""
    live = scenarios("live", 40)
    counts, written = mixed(tmp_path / "m.parquet", 100, 0, 0.5, conversations=live)
    sides = {one.id: one.split for one in written if one.id.startswith("live")}
    assert sides == {one.id: assign_split(text_digest(one), share=0.25) for one in live}
    assert 0 < counts.conversations_heldout < 40


def test_evaluation_scenarios_of_the_champion_stay_held_out(tmp_path: Path):
    """Settings may have changed since: a scenario that would be trained on now is held out all the same."""
    base, live = scenarios("base", 10), scenarios("live", 10, split="train")
    judged = {text_digest(base[3]), text_digest(live[4])}
    counts, written = mixed(tmp_path / "m.parquet", 0, 0, 0.5, base_train=base, conversations=live, judged=judged)
    heldout = {one.id for one in written if one.split == "heldout"}
    assert {"base-3", "live-4"} < heldout
    assert (counts.base_train, counts.conversations_train) == (9, 9)


def test_training_scenarios_of_the_champion_are_not_held_out(tmp_path: Path):
    """More may be held out now than then: what the weights have seen stays on the training split, judged on or not."""
    held, live = scenarios("heldout", 5), scenarios("live", 6, split="heldout")
    trained = {text_digest(held[2]), text_digest(live[4])}
    _, written = mixed(
        tmp_path / "m.parquet", 3, 0, 0.5, base_heldout=held, conversations=live, trained=trained, judged=trained
    )
    sides = {one.id: one.split for one in written}
    assert (sides["heldout-2"], sides["live-4"]) == ("train", "train")
    assert sum(split == "heldout" for split in sides.values()) == 4 + 5


def of_category(prefix: str, count: int, category: str) -> list[Scenario]:
    return [
        one.model_copy(update={"metadata": Metadata(category=category)}) for one in scenarios(prefix, count, "train")
    ]


@pytest.mark.parametrize(("count", "held"), [(19, 0), (20, 1), (40, 1)])
def test_a_new_category_gets_one_held_out_scenario(tmp_path: Path, count: int, held: int):
    """From 20 on, where the texts themselves choose none: the lowest digest. The split takes the mixture."""
    live = of_category("parking", count, "parking")
    _, written = mixed(tmp_path / "m.parquet", 30, 0, 0.5, conversations=live)
    heldout = [one for one in written if one.split == "heldout" and one.metadata.category == "parking"]
    assert [text_digest(one) for one in heldout] == sorted(map(text_digest, live))[:held]
    assert split(tmp_path / "m.parquet", validation_fraction=0.25, limit=None).categories["parking"].heldout == held


def test_a_training_scenario_is_not_held_out_for_its_category(tmp_path: Path):
    """Of 20 the champion was trained on the three with the lowest digests: the fourth is held out."""
    live = of_category("parking", 20, "parking")
    digests = sorted(map(text_digest, live))
    _, written = mixed(tmp_path / "m.parquet", 30, 0, 0.5, conversations=live, trained=digests[:3])
    heldout = [one for one in written if one.split == "heldout" and one.metadata.category == "parking"]
    assert [text_digest(one) for one in heldout] == digests[3:4]
