"""The split: stable, without leakage, in proportion."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from grpo.errors import DataError
from grpo.scenario import Metadata, Origin, Scenario, SplitName
from grpo.scenarios.split import Split, assign_split, split, validation_split
from grpo.scenarios.table import write_scenarios


def scenario(name: str, *, text: str = "", category: str = "returns", split: SplitName | None = None) -> Scenario:
    """A scenario whose text is its name by default."""
    return Scenario(id=name, user_responses=(text or name,), metadata=Metadata(category=category), split=split)


def run(
    tmp_path: Path, scenarios: Iterable[Scenario], *, validation_fraction: float = 0.25, limit: int | None = None
) -> Split:
    """Split these scenarios."""
    path = tmp_path / "scenarios.parquet"
    write_scenarios(path, scenarios)
    return split(path, validation_fraction=validation_fraction, limit=limit)


def many(count: int, *, prefix: str = "s", category: str = "returns") -> list[Scenario]:
    """Scenarios of one category with different texts."""
    return [scenario(f"{prefix} {index}", category=category) for index in range(count)]


def test_a_digest_below_the_fraction_is_held_out() -> None:
    """0x3f…f is just below a quarter of all digests, 0x40…0 is a quarter."""
    assert assign_split("3fffffffffffffff", share=0.25) == "heldout"
    assert assign_split("4000000000000000", share=0.25) == "train"


def test_a_declared_split_overrules_the_digest() -> None:
    """The declaration of the source is used."""
    assert assign_split("0000000000000000", declared="train", share=0.25) == "train"


def test_a_scenario_stays_in_its_split_when_others_are_added(tmp_path: Path) -> None:
    """A held-out scenario is not trained on later, however the table grows."""
    few = run(tmp_path, many(40))
    more = run(tmp_path, [*many(40, prefix="t", category="other"), *many(40)])
    assert set(few.heldout) <= set(more.heldout)
    assert set(few.train) <= set(more.train)


def test_the_same_text_is_in_one_split_under_any_category(tmp_path: Path) -> None:
    """Forty texts, each under two categories and in two spellings: both are in the same split."""
    pairs = [
        scenario(f"{category} {index}", text=text.format(index), category=category)
        for index in range(40)
        for category, text in (("returns", "Order {} is late."), ("delays", "order {} is LATE"))
    ]
    result = run(tmp_path, pairs)
    for ids in (result.train, result.heldout):
        assert {i for i in range(40) if f"returns {i}" in ids} == {i for i in range(40) if f"delays {i}" in ids}


@pytest.mark.parametrize(("split", "share"), [("train", 0.99), ("heldout", 0.01)])
def test_an_undeclared_scenario_follows_a_declared_one_with_its_text(
    tmp_path: Path, split: SplitName, share: float
) -> None:
    """A declaration of one source also holds for the same text of another source."""
    copies = [scenario(f"copy {index}", text=f"text {index}") for index in range(9)]
    declared = [scenario(f"declared {index}", text=f"text {index}", split=split) for index in range(9)]
    other: SplitName = "heldout" if split == "train" else "train"
    result = run(tmp_path, [*copies, *declared, scenario("other", split=other)], validation_fraction=share)
    assert (result.heldout if split == "train" else result.train) == ("other",)


def test_each_category_is_split_in_proportion(tmp_path: Path) -> None:
    """Of 400 in a category about 100 are held out: 35 is four standard deviations, sqrt(400 * 0.25 * 0.75) = 8.7."""
    result = run(tmp_path, [*many(400, category="a"), *many(400, prefix="t", category="b")])
    for category in ("a", "b"):
        count = result.categories[category]
        assert count.train + count.heldout == 400
        assert abs(count.heldout - 100) < 35


def test_a_limit_keeps_the_first_by_hash_in_each_split(tmp_path: Path) -> None:
    """Ten of each split, the first ten of the unlimited one; the counts are those of the kept ones."""
    whole = run(tmp_path, many(200))
    some = run(tmp_path, reversed(many(200)), limit=10)
    assert (some.train, some.heldout) == (whole.train[:10], whole.heldout[:10])
    assert some.categories["returns"].model_dump() == {"train": 10, "heldout": 10}


@pytest.mark.parametrize(("split", "empty"), [("train", "held-out"), ("heldout", "training")])
def test_an_empty_split_is_an_error(tmp_path: Path, split: SplitName, empty: str) -> None:
    """Neither training nor evaluation is possible without scenarios."""
    with pytest.raises(DataError, match=f"the {empty} split is empty"):
        run(tmp_path, [scenario("a", split=split), scenario("b", split=split)])


def test_an_empty_split_is_named_with_its_table_and_the_remedy(tmp_path: Path) -> None:
    """Value, place and remedy; both splits are counted."""
    with pytest.raises(DataError) as refusal:
        run(tmp_path, [scenario(name, split="heldout") for name in "abc"])
    assert str(refusal.value) == (
        f"{tmp_path / 'scenarios.parquet'}: the training split is empty at validation_fraction 0.25, of 3 scenarios. "
        "Add scenarios or change scenarios.validation_fraction"
    )


def test_a_large_category_without_held_out_scenarios_is_an_error(tmp_path: Path) -> None:
    """Twenty training scenarios and none to evaluate; nineteen are allowed, as it may be chance."""
    training = [scenario(f"s {index}", split="train") for index in range(20)]
    other = scenario("held", category="other", split="heldout")
    assert run(tmp_path, [*training[:19], other]).categories["returns"].heldout == 0
    with pytest.raises(DataError, match="none of the 20 scenarios of category returns is held out"):
        run(tmp_path, [*training, other])


def test_at_a_fraction_of_one_all_but_declared_training_scenarios_are_held_out(tmp_path: Path) -> None:
    """Evaluation uses it; a table of declared training scenarios alone is an error."""
    whole = run(tmp_path, many(3), validation_fraction=1.0)
    assert (whole.train, len(whole.heldout)) == ((), 3)
    mixed = run(tmp_path, [*many(3), scenario("own", split="train")], validation_fraction=1.0)
    assert (mixed.train, len(mixed.heldout)) == (("own",), 3)
    with pytest.raises(DataError, match="held-out split is empty"):
        run(tmp_path, [scenario("own", split="train")], validation_fraction=1.0)


def test_the_validation_split_comes_from_the_training_scenarios_alone(tmp_path: Path) -> None:
    """No held-out scenario is in either part, and the same text is in one part."""
    twins = [scenario(f"twin {k}", text=f"s {k}") for k in range(200)]
    splits = run(tmp_path, [*many(200), *twins])
    inner = validation_split(tmp_path / "scenarios.parquet", splits, share=0.25)
    assert {*inner.train, *inner.heldout} == set(splits.train)
    assert not {*inner.train, *inner.heldout} & set(splits.heldout)
    assert 0.1 < len(inner.heldout) / len(splits.train) < 0.4
    for name in inner.heldout:
        assert name.replace("twin", "s") in inner.heldout


def test_too_few_training_scenarios_for_a_validation_split_are_an_error(tmp_path: Path) -> None:
    """The error has the counts and the remedy."""
    splits = run(tmp_path, many(12))
    with pytest.raises(DataError) as refusal:
        validation_split(tmp_path / "scenarios.parquet", splits, share=0.001)
    assert str(refusal.value) == (
        f"{tmp_path / 'scenarios.parquet'}: 0 of {len(splits.train)} training scenarios are held out at share 0.001. "
        "Both splits need some: add scenarios or change validation_fraction"
    )


def test_a_category_of_served_conversations_may_be_without_held_out_scenarios(tmp_path: Path) -> None:
    """A retraining has no say in what users ask about. Without an origin, the same scenarios are refused."""
    written = [scenario(f"s {index}", category="new", split="train") for index in range(20)]
    base = many(40)
    origin = Origin(keys=("abc",), user="anna")
    served = [
        item.model_copy(update={"metadata": item.metadata.model_copy(update={"origin": origin})}) for item in written
    ]
    assert set(run(tmp_path, [*base, *served]).train) > {item.id for item in served}
    with pytest.raises(
        DataError, match=r"none of the 20 scenarios of category new .* declare some of them heldout in the source$"
    ):
        run(tmp_path, [*base, *written])
