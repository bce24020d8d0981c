"""The curriculum: posteriors by hand, the order that is drawn, and levels that open."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest

from grpo.config.curriculum import CurriculumSettings
from grpo.config.rollout import RolloutSettings
from grpo.errors import DataError
from grpo.rollout.collect import schedule, shard_ids
from grpo.rollout.curriculum import Curriculum, SuccessCount
from grpo.scenarios.split import Split
from grpo.trajectories import Outcome, Trajectory
from tests.doubles import make_trajectory

SETTINGS = CurriculumSettings()
LEVELS = CurriculumSettings(levels=("easy", "hard"), open_at=0.6, discount=0.5)
CATEGORIES = {"a": "easy", "b": "easy", "c": "hard", "d": "other"}


def episode(scenario: str, success: bool | None, category: str = "c") -> Trajectory:
    outcome = None if success is None else Outcome(success=success)
    return make_trajectory(scenario_id=scenario, category=category, outcome=outcome)


def episodes(scenario: str, successes: int, count: int, category: str = "c") -> list[Trajectory]:
    return [episode(scenario, sample < successes, category) for sample in range(count)]


def draw(
    curriculum: Curriculum,
    ids: Iterable[str],
    settings: CurriculumSettings = SETTINGS,
    *,
    iteration: int = 0,
    count: int = 2,
    round: int = 0,
    categories: Mapping[str, str] = CATEGORIES,
) -> list[str]:
    return curriculum.draw(
        list(ids), settings, categories=lambda: categories, iteration=iteration, count=count, seed=3, round=round
    )


def test_the_expected_variance_is_largest_for_scenarios_that_succeed_half_the_time():
    """Beta(1 + s, 1 + f): 1·1/(2·3); 3·3/(6·7); 5·1/(6·7), also for failures; 2·4/(6·7)."""
    counts = [(0, 0, 1 / 6), (2, 2, 9 / 42), (4, 0, 5 / 42), (0, 4, 5 / 42), (1, 3, 8 / 42)]
    for successes, failures, variance in counts:
        assert SuccessCount(successes=successes, failures=failures).expected_variance == pytest.approx(variance)


def test_older_iterations_count_less_and_episodes_without_an_outcome_not_at_all():
    """3 of 4, then 0 of 2 at discount ½: 1.5 successes, .5 + 2 failures. A scenario that is not drawn fades as well."""
    settings = CurriculumSettings(discount=0.5)
    first = Curriculum().after([*episodes("s", 3, 4), *episodes("t", 2, 2), episode("u", None)], settings)
    assert first.scenarios == {
        "s": SuccessCount(successes=3, failures=1),
        "t": SuccessCount(successes=2, failures=0),
    }
    second = first.after(episodes("s", 0, 2), settings)
    assert second.scenarios == {
        "s": SuccessCount(successes=1.5, failures=2.5),
        "t": SuccessCount(successes=1, failures=0),
    }


def test_a_draw_depends_on_seed_and_iteration_and_repeats_no_scenario():
    """The rounds of an iteration are one order of all scenarios, and another curriculum has another order."""
    ids = [f"s{k}" for k in range(20)]
    rounds = [draw(Curriculum(), ids, count=8, round=k) for k in range(4)]
    assert [len(part) for part in rounds] == [8, 8, 4, 0]
    assert sorted(name for part in rounds for name in part) == sorted(ids)
    assert rounds[0] == draw(Curriculum(), ids, count=8)
    assert rounds[0] != draw(Curriculum(), ids, count=8, iteration=1)
    easy = Curriculum().after([e for name in rounds[0] for e in episodes(name, 8, 8)], SETTINGS)
    assert set(draw(easy, ids, count=8)) != set(rounds[0])


def test_the_first_of_a_draw_has_the_probability_of_its_weight():
    """Variances 9/42 and 5/42 with a floor of .2: .8 · 9/14 + .1 = .614; 4,000 draws have a deviation of .0077."""
    settings = CurriculumSettings(uniform_share=0.2)
    curriculum = Curriculum().after([*episodes("s", 2, 4), *episodes("t", 4, 4)], settings)
    first = Counter(draw(curriculum, "st", settings, iteration=k, count=1)[0] for k in range(4000))
    assert first["s"] / 4000 == pytest.approx(0.8 * 9 / 14 + 0.1, abs=0.03)


def test_a_uniform_share_of_one_draws_all_scenarios_alike():
    """Success has no influence: 1/2 for each of the two, as above."""
    settings = CurriculumSettings(uniform_share=1.0)
    curriculum = Curriculum().after([*episodes("s", 50, 100), *episodes("t", 100, 100)], settings)
    first = Counter(draw(curriculum, "st", settings, iteration=k, count=1)[0] for k in range(4000))
    assert first["s"] / 4000 == pytest.approx(0.5, abs=0.03)


def planted(settings: CurriculumSettings, iterations: int, *, through_files: bool = False) -> list[list[str]]:
    """Draws of 6 from 30 scenarios, of which 10 never, 10 always and 10 half of the time succeed, 8 episodes each.

    With `through_files` each iteration reads the curriculum of the one before from JSON, as a resumed run does.
    """
    probability = {"never": 0.0, "always": 1.0, "middle": 0.5}
    ids = [f"{kind}-{k}" for kind in probability for k in range(10)]
    curriculum, draws, world = Curriculum(), [], random.Random(5)
    for iteration in range(iterations):
        chosen = draw(curriculum, ids, settings, iteration=iteration, count=6)
        played = [
            episode(name, world.random() < probability[name.partition("-")[0]]) for name in chosen for _ in range(8)
        ]
        draws.append(chosen)
        curriculum = curriculum.after(played, settings)
        if through_files:
            curriculum = Curriculum.model_validate_json(curriculum.model_dump_json())
    return draws


def test_sampling_shifts_to_scenarios_of_middle_success():
    """A third of all scenarios is in the middle: clearly more than a third of the draws from iteration 20 on are."""
    draws = planted(CurriculumSettings(discount=1.0), iterations=60)
    later = Counter(name.partition("-")[0] for chosen in draws[20:] for name in chosen)
    assert later["middle"] / later.total() > 0.55
    assert min(later["never"], later["always"]) > 0  # the floor
    assert len({name for chosen in draws for name in chosen}) == 30


def test_a_resumed_run_draws_the_same():
    """Interrupted after each iteration, and not at all; and no draw depends on how far the run goes."""
    whole = planted(SETTINGS, iterations=12)
    assert planted(SETTINGS, iterations=12, through_files=True) == whole
    assert planted(SETTINGS, iterations=6) == whole[:6]


def test_only_the_first_level_and_categories_without_a_level_are_open_at_first():
    """c is hard."""
    assert sorted(draw(Curriculum(), "abcd", LEVELS, count=9)) == ["a", "b", "d"]


def test_a_level_opens_when_the_success_of_the_one_before_reaches_the_bound():
    """Beta(1 + 2, 1 + 2) has mean .5; half of it and 4 of 4 more is Beta(1 + 5, 1 + 1), mean 6/8."""
    first = Curriculum().after([*episodes("a", 2, 4, "easy"), *episodes("d", 4, 4, "other")], LEVELS)
    assert first.levels == {"easy": SuccessCount(successes=2, failures=2)}
    assert first.open_levels == 1
    second = first.after(episodes("b", 4, 4, "easy"), LEVELS)
    assert second.open_levels == 2
    assert sorted(draw(second, "abcd", LEVELS, count=9)) == ["a", "b", "c", "d"]


def test_an_open_level_stays_open_and_the_last_one_opens_nothing():
    """Also after failures, and after successes of the last level."""
    both = Curriculum(open_levels=2)
    assert both.after([*episodes("a", 0, 8, "easy"), *episodes("c", 8, 8, "hard")], LEVELS).open_levels == 2


def test_no_level_opens_before_the_one_before_it_was_rolled_out():
    """Without an episode the mean of the posterior is ½, above the bound."""
    settings = CurriculumSettings(levels=("easy", "hard"), open_at=0.4)
    assert Curriculum().after(episodes("d", 4, 4, "other"), settings).open_levels == 1


def test_a_level_that_no_training_scenario_has_is_refused():
    """The message names it, and the categories that there are."""
    settings = CurriculumSettings(levels=("easy", "hrad", "gone"))
    with pytest.raises(DataError, match=r"has the category gone, hrad; name some of easy, hard, other"):
        draw(Curriculum(), "abcd", settings)
    with pytest.raises(DataError, match=r"^no scenario to roll out: the training split is empty"):
        draw(Curriculum(), "", settings)


@pytest.mark.parametrize("levels", [("easy",), ("easy", "hard", "easy")])
def test_a_single_level_and_a_repeated_one_are_refused(levels: tuple[str, ...]):
    """One level opens nothing."""
    with pytest.raises(ValueError, match="name at least two categories, each once"):
        CurriculumSettings(levels=levels)


@pytest.mark.parametrize(("seed", "round"), [(3, 0), (4, 0), (3, 1)])
def test_the_shards_of_a_schedule_are_parts_of_the_draw_of_its_seed_and_round(seed: int, round: int):
    """Without a curriculum. Another seed, and another round of the same iteration, draw other scenarios."""
    ids = tuple(f"s{k}" for k in range(40))
    split, settings = Split(train=ids, heldout=(), categories={}), RolloutSettings(scenarios=5, shards=2)

    def shard(number: int, seed: int, round: int) -> list[str]:
        given = {"seed": seed, "round": round, "shard": number}
        return shard_ids(split, 2, settings, **given, curriculum=Curriculum(), categories=dict)

    drawn = schedule(ids, iteration=2, count=5, seed=seed, round=round)
    assert (shard(0, seed, round), shard(1, seed, round)) == (drawn[::2], drawn[1::2])
    assert len({tuple(shard(0, *changed)) for changed in ((3, 0), (4, 0), (3, 1))}) == 3


def test_the_shards_of_a_curriculum_are_parts_of_one_draw_and_held_out_scenarios_are_all_of_them():
    """Two shards of five scenarios; the held-out part does not depend on the curriculum."""
    ids = tuple(f"s{k}" for k in range(9))
    split = Split(train=ids, heldout=("x", "y", "z"), categories={})
    settings = RolloutSettings(scenarios=5, shards=2, curriculum=SETTINGS)
    past = Curriculum().after(episodes("s0", 1, 2), SETTINGS)

    def shard(part: object, number: int) -> list[str]:
        return shard_ids(split, part, settings, seed=3, round=0, shard=number, curriculum=past, categories=dict)  # type: ignore[arg-type]

    drawn = draw(past, ids, count=5, iteration=2)
    assert (shard(2, 0), shard(2, 1)) == (drawn[::2], drawn[1::2])
    assert [*shard("heldout", 0), *shard("heldout", 1)] == ["x", "z", "y"]
