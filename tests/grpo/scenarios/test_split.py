"""The split: stable, without leakage, in proportion."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from grpo.errors import DataError
from grpo.scenarios.parquet import write_scenarios
from grpo.scenarios.scenario import Metadata, Scenario, Side
from grpo.scenarios.split import Split, hold_back, side_of, split


def scenario(name: str, *, text: str = "", category: str = "returns", side: Side | None = None) -> Scenario:
    """A scenario whose text is its name, unless told otherwise."""
    return Scenario(id=name, user_responses=(text or name,), metadata=Metadata(category=category), side=side)


def run(
    tmp_path: Path, scenarios: Iterable[Scenario], *, heldout_share: float = 0.25, limit: int | None = None
) -> Split:
    """Split these scenarios."""
    path = tmp_path / "scenarios.parquet"
    write_scenarios(path, scenarios)
    return split(path, heldout_share=heldout_share, limit=limit)


def many(count: int, *, prefix: str = "s", category: str = "returns") -> list[Scenario]:
    """Scenarios of one category with different texts."""
    return [scenario(f"{prefix} {index}", category=category) for index in range(count)]


def test_a_digest_below_the_share_is_held_out() -> None:
    """0x3f…f is just below a quarter of all digests, 0x40…0 is a quarter."""
    assert side_of("3fffffffffffffff", share=0.25) == "heldout"
    assert side_of("4000000000000000", share=0.25) == "train"


def test_a_declared_side_overrules_the_digest() -> None:
    """What the source says is not asked again."""
    assert side_of("0000000000000000", declared="train", share=0.25) == "train"


def test_the_same_scenario_stays_on_its_side_when_others_are_added(tmp_path: Path) -> None:
    """A larger table moves nobody: what was held out is never trained on later."""
    few = run(tmp_path, many(40))
    more = run(tmp_path, [*many(40, prefix="t", category="other"), *many(40)])
    assert set(few.heldout) <= set(more.heldout)
    assert set(few.train) <= set(more.train)


def test_the_same_text_is_on_one_side_whatever_its_category(tmp_path: Path) -> None:
    """Forty texts, each under two categories and in two spellings: both are on the same side."""
    pairs = [
        scenario(f"{category} {index}", text=text.format(index), category=category)
        for index in range(40)
        for category, text in (("returns", "Order {} is late."), ("delays", "order {} is LATE"))
    ]
    found = run(tmp_path, pairs)
    for ids in (found.train, found.heldout):
        assert {i for i in range(40) if f"returns {i}" in ids} == {i for i in range(40) if f"delays {i}" in ids}


@pytest.mark.parametrize(("side", "share"), [("train", 0.99), ("heldout", 0.01)])
def test_an_undeclared_scenario_follows_a_declared_one_with_its_text(tmp_path: Path, side: Side, share: float) -> None:
    """A text that one source declares is not put on the other side because another source does not."""
    copies = [scenario(f"copy {index}", text=f"text {index}") for index in range(9)]
    declared = [scenario(f"declared {index}", text=f"text {index}", side=side) for index in range(9)]
    other: Side = "heldout" if side == "train" else "train"
    found = run(tmp_path, [*copies, *declared, scenario("other", side=other)], heldout_share=share)
    assert (found.heldout if side == "train" else found.train) == ("other",)


def test_each_category_is_split_in_proportion(tmp_path: Path) -> None:
    """Of 400 in a category about 100 are held out: 35 is four standard deviations, sqrt(400 * 0.25 * 0.75) = 8.7."""
    found = run(tmp_path, [*many(400, category="a"), *many(400, prefix="t", category="b")])
    for category in ("a", "b"):
        count = found.categories[category]
        assert count.train + count.heldout == 400
        assert abs(count.heldout - 100) < 35


def test_a_limit_keeps_the_first_by_hash_on_each_side(tmp_path: Path) -> None:
    """Ten of each side, the same ten that lead the unlimited split, and counted as what they are."""
    whole = run(tmp_path, many(200))
    some = run(tmp_path, reversed(many(200)), limit=10)
    assert (some.train, some.heldout) == (whole.train[:10], whole.heldout[:10])
    assert some.categories["returns"].model_dump() == {"train": 10, "heldout": 10}


@pytest.mark.parametrize(("side", "empty"), [("train", "held-out"), ("heldout", "training")])
def test_an_empty_side_is_an_error(tmp_path: Path, side: Side, empty: str) -> None:
    """There is nothing to train on, or nothing to judge by."""
    with pytest.raises(DataError, match=f"the {empty} side is empty"):
        run(tmp_path, [scenario("a", side=side), scenario("b", side=side)])


def test_an_empty_side_is_named_with_its_table_and_what_to_change(tmp_path: Path) -> None:
    """Value, place and remedy; both sides are counted."""
    with pytest.raises(DataError) as refusal:
        run(tmp_path, [scenario(name, side="heldout") for name in "abc"])
    assert str(refusal.value) == (
        f"{tmp_path / 'scenarios.parquet'}: the training side is empty at heldout_share 0.25, of 3 scenarios; "
        "add scenarios or change scenarios.heldout_share"
    )


def test_a_large_category_that_nobody_is_held_out_of_is_an_error(tmp_path: Path) -> None:
    """Twenty scenarios of a category and none to judge it by; nineteen may be so by chance."""
    trained = [scenario(f"s {index}", side="train") for index in range(20)]
    held = scenario("held", category="other", side="heldout")
    assert run(tmp_path, [*trained[:19], held]).categories["returns"].heldout == 0
    with pytest.raises(DataError, match="none of the 20 scenarios of category returns is held out"):
        run(tmp_path, [*trained, held])


def test_at_a_share_of_one_all_are_held_out_but_those_declared_to_be_trained_on(tmp_path: Path) -> None:
    """As evaluation asks for it; of scenarios to train on alone nothing is left to play."""
    whole = run(tmp_path, many(3), heldout_share=1.0)
    assert (whole.train, len(whole.heldout)) == ((), 3)
    mixed = run(tmp_path, [*many(3), scenario("own", side="train")], heldout_share=1.0)
    assert (mixed.train, len(mixed.heldout)) == (("own",), 3)
    with pytest.raises(DataError, match="held-out side is empty"):
        run(tmp_path, [scenario("own", side="train")], heldout_share=1.0)


def test_what_is_held_back_comes_from_the_training_side_alone(tmp_path: Path) -> None:
    """Settings are chosen on it: no scenario of the held-out side is on either side, and the same text is on one."""
    twins = [scenario(f"twin {k}", text=f"s {k}") for k in range(200)]
    sides = run(tmp_path, [*many(200), *twins])
    inner = hold_back(tmp_path / "scenarios.parquet", sides, share=0.25)
    assert {*inner.train, *inner.heldout} == set(sides.train)
    assert not {*inner.train, *inner.heldout} & set(sides.heldout)
    assert 0.1 < len(inner.heldout) / len(sides.train) < 0.4
    for name in inner.heldout:
        assert name.replace("twin", "s") in inner.heldout


def test_a_training_side_too_small_to_be_split_again_is_said(tmp_path: Path) -> None:
    """With what to change."""
    sides = run(tmp_path, many(12))
    with pytest.raises(DataError) as refusal:
        hold_back(tmp_path / "scenarios.parquet", sides, share=0.001)
    assert str(refusal.value) == (
        f"{tmp_path / 'scenarios.parquet'}: 0 of {len(sides.train)} training scenarios are held back at share 0.001; "
        "both sides need some: add scenarios or change validation_share"
    )
