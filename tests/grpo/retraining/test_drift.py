from __future__ import annotations

import json
import random
from itertools import islice

import pytest

from grpo.config.scenarios import MultiDoGOSource
from grpo.environments.support_desk.scenario_generator import Phrasebook, generate_scenarios
from grpo.retraining.drift import compare_topics
from grpo.scenarios.sources import read_records
from tests.places import DESK_SCENARIOS, PUBLISHED, ROOT

MULTIDOGO = PUBLISHED / "multidogo"


def test_statistic_and_p_value_match_the_definition():
    """Means (1,0) and (0,1): distance 2; of the 6 ways to label 2 + 2 texts 2 reach it, p = 1/3."""
    result = compare_topics(["red", "red"], ["blue", "blue"], sample=10, seed=0, permutations=2999)
    assert result.mmd == pytest.approx(2)
    assert result.p == pytest.approx(1 / 3, abs=0.03)  # 3.5 standard errors of 2999 shuffles
    assert result.words == ("blue",)


def test_equal_samples_do_not_differ():
    """Distance 0, which every shuffle reaches."""
    result = compare_topics(["red hat", "blue hat"], ["blue hat", "red hat"], sample=10, seed=0)
    assert (result.mmd, result.p) == (pytest.approx(0), 1.0)


def test_one_false_alarm_in_twenty_at_level_one_twentieth():
    """Halves of the support desk's scenarios: of 200 tests 10 are expected, more than 19 in 1 of 250 such series."""
    lines = DESK_SCENARIOS.read_text(encoding="utf-8").splitlines()
    texts = ["\n".join(json.loads(line)["user_responses"]) for line in lines]
    rng = random.Random(0)
    alarms = 0
    for seed in range(200):
        drawn = rng.sample(texts, 80)
        alarms += compare_topics(drawn[:40], drawn[40:], sample=40, seed=seed, permutations=199).p <= 0.05
    assert alarms <= 19


def test_other_customers_of_the_same_desk_are_detected():
    """The other phrasebook has other words for the same four troubles."""
    folder = ROOT / "data" / "scenarios"
    known, new = (
        [one.text for one in islice(generate_scenarios(Phrasebook.load(folder / name), seed=1, prefix="x"), 60)]
        for name in ("phrasebook_scenarios.yaml", "phrasebook_demonstrations.yaml")
    )
    assert compare_topics(known, new, sample=60, seed=0).p <= 0.01


@pytest.mark.skipif(not MULTIDOGO.is_dir(), reason="MultiDoGO is not on this machine")
def test_two_fifths_of_another_domain_are_detected():
    """Software support against itself and a share of finance: at level 0.01 each of 5 draws is noticed."""
    software, finance = (
        ["\n".join(one.data["user_responses"]) for one in read_records(_domain(name)) if one.data is not None]
        for name in ("software", "finance")
    )
    rng = random.Random(0)
    for seed in range(5):
        drawn = rng.sample(software, 320)
        new = drawn[200:] + rng.sample(finance, 80)
        assert compare_topics(drawn[:200], new, sample=200, seed=seed).p <= 0.01


def _domain(name: str) -> MultiDoGOSource:
    return MultiDoGOSource.model_validate(
        {"kind": "multidogo", "path": str(MULTIDOGO), "domains": [name], "parts": ["train"]}
    )
