from __future__ import annotations

from pathlib import Path

import pytest

from grpo.config.retraining import MixtureSettings
from grpo.retraining.mixture import MixtureCounts, OriginShare, mix
from grpo.scenario import Metadata, Origin, Scenario
from grpo.scenarios.split import assign_split, split
from grpo.scenarios.table import read_scenarios, start_digest


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
        "settings": MixtureSettings(
            conversation_fraction=share, heldout_fraction=0.999, key_fraction=1.0, user_fraction=1.0
        ),
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
        (0, 40, 0.5, (0, 0)),  # without a base there is nothing that they could be a share of
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
    assert sides == {one.id: assign_split(start_digest(one), share=0.25) for one in live}
    assert 0 < counts.conversations_heldout < 40


def test_evaluation_scenarios_of_the_champion_stay_held_out(tmp_path: Path):
    """Settings may have changed since: a scenario that would be trained on now is held out all the same."""
    base, live = scenarios("base", 10), scenarios("live", 10, split="train")
    judged = {start_digest(base[3]), start_digest(live[4])}
    counts, written = mixed(tmp_path / "m.parquet", 0, 0, 0.5, base_train=base, conversations=live, judged=judged)
    heldout = {one.id for one in written if one.split == "heldout"}
    assert {"base-3", "live-4"} < heldout
    assert (counts.base_train, counts.conversations_train) == (9, 9)


def test_training_scenarios_of_the_champion_are_not_held_out(tmp_path: Path):
    """More may be held out now than then: what the weights have seen stays on the training split, judged on or not."""
    held, live = scenarios("heldout", 5), scenarios("live", 6, split="heldout")
    trained = {start_digest(held[2]), start_digest(live[4])}
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
def test_a_category_of_the_base_gets_one_held_out_scenario(tmp_path: Path, count: int, held: int):
    """From 20 on, where the texts themselves choose none: the lowest digest. The split takes the mixture."""
    base = of_category("parking", count, "parking")
    _, written = mixed(tmp_path / "m.parquet", 0, 0, 0.5, base_train=base, conversations=[])
    heldout = [one for one in written if one.split == "heldout" and one.metadata.category == "parking"]
    assert [start_digest(one) for one in heldout] == sorted(map(start_digest, base))[:held]
    assert split(tmp_path / "m.parquet", validation_fraction=0.25, limit=None).categories["parking"].heldout == held


def test_a_category_that_only_conversations_have_holds_nothing_out_and_stops_nothing(tmp_path: Path):
    """40 conversations that a client calls "parking", all in training: none is held out for it, and the split takes
    the mixture. A category of the base with one conversation held out still gets a base scenario."""
    live = [*of_category("live", 40, "parking"), scenarios("late", 1, "heldout")[0]]
    live[-1] = live[-1].model_copy(update={"metadata": Metadata(category="late")})
    base = of_category("base", 20, "late")
    _, written = mixed(tmp_path / "m.parquet", 0, 0, 0.75, base_train=base, conversations=live)
    held = [one.id.partition("-")[0] for one in written if one.split == "heldout" and one.metadata.category == "late"]
    assert sorted(held) == ["base", "late"]
    parking = split(tmp_path / "m.parquet", validation_fraction=0.25, limit=None).categories["parking"]
    assert (parking.train, parking.heldout) == (40, 0)


def test_a_training_scenario_is_not_held_out_for_its_category(tmp_path: Path):
    """Of 20 the champion was trained on the three with the lowest digests: the fourth is held out."""
    base = of_category("parking", 20, "parking")
    digests = sorted(map(start_digest, base))
    _, written = mixed(tmp_path / "m.parquet", 0, 0, 0.5, base_train=base, conversations=[], trained=digests[:3])
    heldout = [one for one in written if one.split == "heldout" and one.metadata.category == "parking"]
    assert [start_digest(one) for one in heldout] == digests[3:4]


def given(
    prefix: str, count: int, split: str, key: str, user: str = "", copies: tuple[str, ...] = ()
) -> list[Scenario]:
    origin = Origin(keys=(key, *copies), user=user)
    return [one.model_copy(update={"metadata": Metadata(origin=origin)}) for one in scenarios(prefix, count, split)]


def bounded(folder: Path, *conversations: list[Scenario], base: int = 10, **settings: float) -> MixtureCounts:
    """Mixture of 10 base scenarios in either split and these conversations, by the default bounds."""
    return mix(
        folder / "m.parquet",
        base_train=scenarios("base", base),
        base_heldout=scenarios("heldout", base),
        conversations=[item for part in conversations for item in part],
        new_ids=(),
        judged=(),
        trained=(),
        settings=MixtureSettings(**settings),
        validation_fraction=0.25,
        seed=1,
    )


def test_two_thousand_conversations_of_one_key_are_a_quarter_of_either_split(tmp_path: Path):
    """10 base and 3 conversations: 3 / 13 = .23 is within .25, and 4 / 14 = .29 is not. 1,500 - 3 and 500 - 3 are left
    out, and in neither split."""
    counts = bounded(tmp_path, given("flood", 1500, "train", "k"), given("more", 500, "heldout", "k"))
    assert (counts.base_train, counts.conversations_train) == (10, 3)
    assert (counts.base_heldout, counts.conversations_heldout) == (10, 3)
    assert counts.left_out == {"train, key_fraction": 1497, "heldout, key_fraction": 497}
    assert counts.key_shares == (OriginShare(name="k", train=3, heldout=3, train_share=3 / 13, heldout_share=3 / 13),)
    assert len(list(read_scenarios(tmp_path / "m.parquet"))) == 26


def test_ten_keys_are_half_of_either_split(tmp_path: Path):
    """10 base and 10 conversations, one of each key: 11 would be 11 / 21 = .52."""
    floods = [given(f"flood-{k}", 200, "heldout", f"key-{k}") for k in range(10)]
    counts = bounded(tmp_path, *floods)
    assert (counts.base_heldout, counts.conversations_heldout) == (10, 10)
    assert [share.heldout for share in counts.key_shares] == [1] * 10
    assert counts.left_out == {"heldout, heldout_fraction": 1990}


def test_copies_under_ten_keys_count_for_each_of_them(tmp_path: Path):
    """As if one key had sent them: 3 / 13 again."""
    keys = [f"key-{k}" for k in range(10)]
    floods = [
        given(f"flood-{k}", 200, "heldout", key, copies=(*keys[:k], *keys[k + 1 :])) for k, key in enumerate(keys)
    ]
    counts = bounded(tmp_path, *floods)
    assert (counts.conversations_heldout, counts.left_out) == (3, {"heldout, key_fraction": 1997})
    assert [share.heldout_share for share in counts.key_shares] == [3 / 13] * 10


def test_keys_take_turns_so_that_a_flood_displaces_nobody(tmp_path: Path):
    """100 base scenarios; one key with 2,000 conversations and three with 20 each: of 100 conversations, the half of
    the split, all 60 of theirs and 40 of the flood."""
    honest = [given(f"honest-{k}", 20, "heldout", f"honest-{k}") for k in range(3)]
    counts = bounded(tmp_path, given("flood", 2000, "heldout", "k"), *honest, base=100)
    assert [(share.name, share.heldout) for share in counts.key_shares] == [
        ("k", 40),
        ("honest-0", 20),
        ("honest-1", 20),
        ("honest-2", 20),
    ]
    assert counts.left_out == {"heldout, heldout_fraction": 1960}


def test_a_user_has_a_twentieth_under_all_keys_and_one_at_least(tmp_path: Path):
    """100 base, 40 conversations of one user and 4 of others without a name: 5 / 109 = .046 is within .05, and 6 / 110
    = .055 is not. Beside 10 base scenarios the user has one. Under ten keys it is one user: 5 of 105."""
    mine, others = given("mine", 40, "heldout", "k", user="u"), given("others", 4, "heldout", "k")
    assert [user.heldout for user in bounded(tmp_path, mine, others, base=100).user_shares] == [5]
    assert [user.heldout for user in bounded(tmp_path, mine).user_shares] == [1]
    under_ten = [given(f"key-{k}", 40, "heldout", f"k{k}", user="u") for k in range(10)]
    assert bounded(tmp_path, *under_ten, base=100).conversations_heldout == 5


def test_all_conversations_of_one_key_are_used_with_enough_base_scenarios(tmp_path: Path):
    """20 conversations are a quarter of 80: 60 base scenarios of 100 are trained on beside them."""
    counts = bounded(tmp_path, given("shop", 20, "train", "k"), base=100)
    assert (counts.base_train, counts.conversations_train, counts.left_out) == (60, 20, {})


def test_conversations_without_a_key_count_as_those_of_one(tmp_path: Path):
    """A log of one's own has no keys: 3 / 13, as of one key."""
    counts = bounded(tmp_path, scenarios("log", 40, "heldout"))
    assert [(share.name, share.heldout) for share in counts.key_shares] == [("unknown", 3)]


def test_a_conversation_that_a_bound_leaves_out_never_changes_its_split(tmp_path: Path):
    """With more base scenarios later, more of the same conversations are held out, and none of them is trained on."""
    live = [
        item.model_copy(update={"split": None, "metadata": Metadata(origin=Origin(keys=("k",)))})
        for item in scenarios("live", 400)
    ]

    def part(base: int, split: str) -> set[str]:
        bounded(tmp_path, live, base=base)
        return {item.id for item in read_scenarios(tmp_path / "m.parquet") if item.split == split and item.id[0] == "l"}

    assert part(10, "heldout") < part(60, "heldout")
    assert not part(10, "heldout") & part(60, "train")
    assert not part(60, "heldout") & part(10, "train")
