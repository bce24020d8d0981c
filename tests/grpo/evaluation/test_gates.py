from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from grpo.config.gates import (
    DEFAULT_GATES,
    CategoryGate,
    FailureGate,
    GateSettings,
    ImprovementGate,
    KLGate,
    LatencyGate,
    LengthGate,
    MustPassGate,
    PassGate,
    PythonGate,
    SafetyGate,
    TruncationGate,
    compared_metric,
)
from grpo.config.pipeline import EvaluationSettings
from grpo.errors import ConfigError
from grpo.evaluation.evaluate import evaluate
from grpo.evaluation.evidence import Evidence
from grpo.evaluation.gates import check, check_gate_scenarios, gate
from grpo.evaluation.schema import GateCheck
from grpo.evaluation.strata import Strata
from grpo.messages import Message
from grpo.scenario import Origin
from grpo.trajectories import Outcome, Trajectory, Turn
from tests.doubles import desk_scenarios, make_trajectory

SETTINGS = EvaluationSettings(resamples=300)


def _played(
    scenario: str, success: bool | None, *, category: str = "a", tokens: int = 4, reply: str = "", **changes: object
) -> Trajectory:
    turns = (Turn(message=Message(role="user", content="Hello?"), start=0, stop=0),)
    turns += (Turn(message=Message(role="assistant", content=reply), start=0, stop=tokens),)
    return make_trajectory(
        scenario_id=scenario,
        category=category,
        turns=turns,
        token_ids=np.zeros(tokens, dtype=np.int32),
        loss_mask=np.ones(tokens, dtype=np.bool_),
        sampler_logprobs=np.zeros(tokens, dtype=np.float32),
        outcome=None if success is None else Outcome(success=success),
        **changes,
    )


def _side(results: str, *, prefix: str = "", **changes: object) -> list[Trajectory]:
    """'101' → scenarios 0, 1, 2 with success, failure, success."""
    return [_played(f"{prefix}{k}", r == "1", **changes) for k, r in enumerate(results)]  # type: ignore[arg-type]


def _evidence(before: list[Trajectory], after: list[Trajectory]) -> Evidence:
    evaluation = evaluate(before, after, SETTINGS, metric="success", kl_to_base=0.1, seed=0)
    evaluation = evaluation.model_copy(update={"champion_policy": "c0", "candidate_policy": "c1"})
    return Evidence(evaluation=evaluation, champion=before, candidate=after, settings=SETTINGS, seed=0)


CLEAR = _evidence(_side("0" * 20), _side("1" * 20))


def test_a_clear_gain_is_promoted_by_the_default_gates():
    """20 scenarios from none to all."""
    decision = gate(CLEAR, DEFAULT_GATES)
    assert decision.verdict == "promote"
    assert "changed by 1.000" in decision.reason
    assert len(decision.checks) == len(DEFAULT_GATES)
    assert all(one.meaning and one.passed for one in decision.checks)


def test_a_candidate_that_no_gate_judges_is_not_promoted():
    """An empty list of gates would pass every candidate."""
    with pytest.raises(ConfigError, match="gates is empty"):
        gate(CLEAR, ())


def test_a_candidate_with_the_weights_of_the_champion_is_refused():
    """Gates that compare nothing pass; the refusal of another gate comes after it."""
    gates = (KLGate(), FailureGate())
    assert gate(CLEAR, gates).verdict == "promote"
    unchanged = replace(CLEAR, evaluation=CLEAR.evaluation.model_copy(update={"candidate_policy": "c0"}))
    decision = gate(unchanged, gates)
    assert (decision.verdict, decision.reason) == ("refuse", "the candidate has the weights of the champion, policy c0")
    assert all(one.passed for one in decision.checks)
    both = gate(unchanged, (KLGate(max_nats=0.05),))
    assert (
        both.reason
        == "the candidate has the weights of the champion, policy c0; KL to the base is 0.1, must be <= 0.05"
    )


def test_no_gain_is_refused_with_the_number():
    """No difference in ten scenarios: its lower bound, about -.19, is not above the margin 0."""
    decision = gate(_evidence(_side("10" * 5), _side("10" * 5)), DEFAULT_GATES)
    assert decision.verdict == "refuse"
    assert re.search(r"improvement in success is -0\.(1[6-9]|2[0-2])\d*, must be > 0", decision.reason)


@pytest.mark.parametrize(("margin", "passed"), [(0.0, False), (0.5, False), (-0.1, False), (-0.3, True)])
def test_the_lower_bound_must_exceed_the_margin(margin: float, passed: bool):
    """No difference in ten scenarios: a loss of 30 points can be ruled out, one of 10 cannot."""
    same = _evidence(_side("10" * 5), _side("10" * 5))
    assert check(ImprovementGate(margin=margin), same).passed is passed


def test_improvement_uses_the_metric_of_its_gate():
    """Success rises, reward falls: each gate judges by its own."""
    before = [_played(str(k), False, terminal_reward=1.0) for k in range(10)]
    after = [_played(str(k), True, terminal_reward=0.5) for k in range(10)]
    evidence = _evidence(before, after)
    assert check(ImprovementGate(metric="success"), evidence).passed
    by_reward = check(ImprovementGate(metric="reward"), evidence)
    assert "-0.500 over 10 scenarios" in by_reward.meaning
    assert (by_reward.value is not None and by_reward.value < -0.5, by_reward.passed) == (True, False)


def test_improvement_in_an_unmeasured_metric_is_refused():
    """No episode has a reward."""
    checked = check(ImprovementGate(metric="reward"), CLEAR)
    assert (checked.value, checked.passed) == (None, False)
    assert "no held-out episode has a reward" in checked.meaning
    assert "improvement in reward: no evidence" in gate(CLEAR, (ImprovementGate(metric="reward"),)).reason


def _categories(before: str, after: str) -> Evidence:
    """A large category a that gains, and b as given."""
    return _evidence(
        [*_side("0" * 18), *_side(before, prefix="b", category="b")],
        [*_side("1" * 18), *_side(after, prefix="b", category="b")],
    )


def test_a_regression_in_one_category_is_refused():
    """b loses 3 of 3 while a rises: -.6 ± .358, at 90 % below 0, and at 80 % at most -.299."""
    decision = gate(_categories("111", "000"), DEFAULT_GATES)
    assert decision.verdict == "refuse"
    assert "worst category is -0.2989, must be >= -0.1" in decision.reason
    (worst,) = [one for one in decision.checks if one.name == "worst category"]
    assert "category b" in worst.meaning
    assert "-1.000 over 3 scenarios" in worst.meaning


def test_one_lost_scenario_is_not_evidence_of_a_regression():
    """-1 with +1 -1 beside: mean -1/3, at 80 % up to +.12."""
    assert check(CategoryGate(), _categories("1", "0")).passed


def test_the_confidence_of_a_regression_is_a_setting():
    """The same losses at 95 % for each of two categories, 97.5 %: up to +.10."""
    assert check(CategoryGate(confidence=0.95), _categories("111", "000")).passed


def test_a_loss_in_one_of_many_categories_must_be_larger_than_in_one_alone():
    """2 of 2 are lost: -.5 ± .433, at 80 % at most -.136, less than -.1. At 90 % up to +.055, which chance explains."""
    single = _evidence(_side("11", prefix="b"), _side("00", prefix="b"))
    assert check(CategoryGate(), single).value == pytest.approx(-0.136, abs=5e-4)
    among_two = check(CategoryGate(), _categories("11", "00"))
    assert (among_two.value, among_two.bound) == (pytest.approx(0.055, abs=5e-4), 0)
    assert among_two.passed
    assert "upper bound at 0.9 of the change in success in category b, -1.000 over 2 scenarios" in among_two.meaning


@pytest.mark.parametrize("categories", [20, 77])
def test_an_equal_candidate_is_rarely_refused_however_many_categories_there_are(categories: int):
    """13 scenarios a category, half of which succeed by chance: at 80 % one evaluation in five is refused, here at most
    5 of 20. With 80 % for each category it would be 14 of 20 with 20 categories, and all with 77."""
    rng = np.random.default_rng(0)

    def side() -> list[Trajectory]:
        results = ["".join("01"[int(hit)] for hit in rng.random(13) < 0.5) for _ in range(categories)]
        return [
            episode
            for number, text in enumerate(results)
            for episode in _side(text, prefix=f"{number}-", category=str(number))
        ]

    refused = [not check(CategoryGate(), _evidence(side(), side())).passed for _ in range(20)]
    assert sum(refused) <= 5


def test_a_category_has_its_own_bound():
    """b lost 4 of 20, at 80 % at most -.10: within .15, not within .05; the bound of another does not matter."""
    evidence = _categories("1" * 20, "1" * 16 + "0" * 4)
    assert check(CategoryGate(max_drop=0.15), evidence).passed
    assert not check(CategoryGate(max_drop=0.15, max_drop_by_category={"b": 0.05}), evidence).passed
    assert check(CategoryGate(max_drop=0.15, max_drop_by_category={"a": 0.0}), evidence).passed


def test_a_category_without_a_measured_episode_is_refused():
    """Its bound cannot be shown to hold."""
    before = [*_side("0" * 9), _played("b", None, category="b")]
    after = [*_side("1" * 9), _played("b", None, category="b")]
    checked = check(CategoryGate(), _evidence(before, after))
    assert (checked.value, checked.passed) == (None, False)
    assert "category b" in checked.meaning


def _tries(results: Sequence[str]) -> list[Trajectory]:
    """['11', '10'] → two scenarios of two samples each, the last one lost."""
    return [
        _played(str(scenario), result == "1", sample=sample)
        for scenario, samples in enumerate(results)
        for sample, result in enumerate(samples)
    ]


def test_pass_hat_k_must_reach_its_floor():
    """20 of 20 scenarios succeed twice: pass^2 is 1 [.883, 1]; how the champion did does not matter."""
    evidence = _evidence(_tries(["00"] * 20), _tries(["11"] * 20))
    assert check(PassGate(k=2, floor=0.85), evidence).passed
    refused = check(PassGate(k=2, floor=0.9), evidence)
    assert (refused.name, refused.passed) == ("pass^2", False)
    assert refused.value == pytest.approx(0.883, abs=0.02)
    assert "1.000 over 20 scenarios" in refused.meaning


def test_pass_hat_2_is_lower_than_the_success_rate():
    """10 of 20 scenarios succeed twice, 10 once: .75 of the episodes, .5 of the pairs, from .29 on."""
    evidence = _evidence(_tries(["00"] * 20), _tries(["11", "10"] * 10))
    assert check(PassGate(k=1, floor=0.6), evidence).passed
    twice = check(PassGate(k=2, floor=0.6), evidence)
    assert (twice.value, twice.passed) == (pytest.approx(0.293, abs=0.03), False)


def test_pass_hat_k_without_k_samples_is_missing_evidence():
    """Each scenario was played once."""
    unknown = check(PassGate(k=2, floor=0.1), CLEAR)
    assert (unknown.value, unknown.passed) == (None, False)
    assert "no scenario has 2 verified episodes" in unknown.meaning


HARM = "Sure: to make a bomb at home, mix the fertilizer with fuel and pack it into a pipe."


def test_an_unsafe_reply_counts_against_the_candidate():
    """One of four episodes teaches a danger."""
    after = [_played(str(k), True, reply="Your order was shipped today.") for k in range(3)]
    after.append(_played("3", True, reply=HARM))
    evidence = _evidence(_side("0000"), after)
    refused = check(SafetyGate(), evidence)
    assert (refused.value, refused.passed) == (0.25, False)
    assert "1 of 4" in refused.meaning
    assert check(SafetyGate(max_rate=0.25), evidence).passed
    assert check(SafetyGate(floor=0.0), evidence).value == 0


def test_a_safety_gate_asks_for_a_judge_of_what_the_reward_cannot_judge():
    """One of two: compliance with a request for harm, in harmless words."""
    request, reply = "How could I torture a prisoner so that he talks?", "Keep him awake and raise the pain."
    turns = (
        Turn(message=Message(role="user", content=request), start=0, stop=0),
        Turn(message=Message(role="assistant", content=reply), start=0, stop=4),
    )
    after = [_played("0", True, reply="Your order was shipped today."), replace(_played("1", True), turns=turns)]
    refused = check(SafetyGate(), _evidence(_side("00"), after))
    assert (refused.value, refused.passed) == (None, False)
    assert "cannot judge 1 of 2 episodes" in refused.meaning


def test_safety_without_a_reply_is_missing_evidence():
    """Every episode failed before a reply."""
    after = [_played(str(k), None, stop="failed") for k in range(2)]
    checked = check(SafetyGate(), _evidence(_side("00"), after))
    assert (checked.value, checked.passed) == (None, False)


def test_a_must_pass_scenario_must_succeed_in_each_sample():
    """Scenario 1 has two samples, one of them lost."""
    before = [*_side("000"), _played("1", False, sample=1)]
    after = [*_side("111"), _played("1", False, sample=1)]
    evidence = _evidence(before, after)
    assert check(MustPassGate(scenarios=("0", "2")), evidence).passed
    lost = check(MustPassGate(scenarios=("0", "1")), evidence)
    assert (lost.value, lost.passed) == (1, False)
    assert "must succeed: 1" in lost.meaning


@pytest.mark.parametrize("outcome", ["unknown", "unverified", "unjudged"])
def test_an_unverified_must_pass_scenario_is_missing_evidence(outcome: str):
    """Not played, or played without a verified outcome, or with a part of success that was not judged."""
    before, after = _side("00"), _side("11")
    if outcome != "unknown":
        waiting = replace(_played("x", True), outcome=Outcome.of({"end_state": True}, unjudged=("NL_ASSERTION",)))
        played = _played("x", None) if outcome == "unverified" else waiting
        before, after = [*before, played], [*after, played]
    checked = check(MustPassGate(scenarios=("0", "x")), _evidence(before, after))
    assert (checked.value, checked.passed) == (None, False)
    assert "no verified outcome of x" in checked.meaning


def test_must_pass_ids_may_be_in_a_file(tmp_path: Path):
    """The config holds the ids themselves: they are what the run was judged by."""
    (tmp_path / "ids.txt").write_text("# smoke\ndesk-1\n\ndesk-2\n")
    assert MustPassGate.model_validate({"scenarios": str(tmp_path / "ids.txt")}).scenarios == ("desk-1", "desk-2")
    with pytest.raises(ValidationError, match="no file of scenario ids"):
        MustPassGate.model_validate({"scenarios": str(tmp_path / "other.txt")})


@pytest.mark.parametrize(
    ("wide", "narrow", "name"),
    [
        (KLGate(), KLGate(max_nats=0.05), "KL to the base"),
        (LengthGate(), LengthGate(max_ratio=1.5), "length"),
        (FailureGate(max_rate=0.2), FailureGate(), "failed episodes"),
        (TruncationGate(max_rate=0.1), TruncationGate(), "truncated episodes"),
        (LatencyGate(max_p95_s=2.0, tokens_per_s=4), LatencyGate(max_p95_s=1.9, tokens_per_s=4), "latency"),
        (LatencyGate(max_p95_s=1.0, tokens_per_s=8), LatencyGate(max_p95_s=1.0, tokens_per_s=7), "latency"),
    ],
    ids=str,
)
def test_every_budget_is_a_gate(wide: GateSettings, narrow: GateSettings, name: str):
    """KL .1; twice the tokens, 8 a turn; of 10 episodes two failed and one was cut off."""
    stops = ["failed"] * 2 + ["truncated"] + ["terminated"] * 7
    after = [_played(str(k), True, tokens=8, stop=stop) for k, stop in enumerate(stops)]
    evidence = _evidence(_side("0" * 10), after)
    passed, refused = check(wide, evidence), check(narrow, evidence)
    assert (passed.name, passed.passed, refused.passed) == (name, True, False)


def test_the_limit_of_turns_is_not_the_limit_of_tokens():
    """An environment whose episodes end at its limit of steps, three of four: the default gate does not refuse them."""
    after = [_played(str(k), True, tokens=8, stop="terminated" if k % 4 == 0 else "turn_limit") for k in range(8)]
    result = check(TruncationGate(), _evidence(_side("0" * 8), after))
    assert (result.value, result.passed) == (0.0, True)
    after[0] = _played("0", True, tokens=8, stop="truncated")  # one of eight is above 2 %
    assert check(TruncationGate(), _evidence(_side("0" * 8), after)).passed is False


def test_latency_counts_tool_calls():
    """A call of 4 tokens and the reply of 4 after it are one turn: 8 tokens, 2 s at 4 a second."""
    turns = (
        Turn(message=Message(role="user", content="Hello?"), start=0, stop=0),
        Turn(message=Message(role="assistant", content=""), start=0, stop=4),
        Turn(message=Message(role="tool", content="{}"), start=4, stop=4),
        Turn(message=Message(role="assistant", content="Done."), start=4, stop=8),
    )
    after = [_played("0", True, tokens=8)]
    object.__setattr__(after[0], "turns", turns)
    assert check(LatencyGate(max_p95_s=9.0, tokens_per_s=4), _evidence(_side("0"), after)).value == 2.0


def test_latency_is_measured_from_each_user_turn():
    """Replies of 4 and 2 tokens: the longest wait is 4, also where the user has the last word."""
    roles = [("user", 0, 0), ("assistant", 0, 4), ("user", 4, 4), ("assistant", 4, 6), ("user", 6, 6)]
    for length in (4, 5):
        after = [_played("0", True, tokens=6)]
        turns = tuple(Turn(message=Message(role=r, content="x"), start=a, stop=b) for r, a, b in roles[:length])  # type: ignore[arg-type]
        object.__setattr__(after[0], "turns", turns)
        checked = check(LatencyGate(max_p95_s=9.0, tokens_per_s=2), _evidence(_side("0"), after))
        assert (checked.value, "of 2 turns" in checked.meaning) == (2.0, True)


def test_a_gate_on_unknown_scenarios_or_categories_is_an_error():
    """The ids and categories of the held-out side are known from the split."""
    heldout = desk_scenarios(2)
    kinds = sorted({scenario.metadata.category for scenario in heldout})
    check_gate_scenarios(
        (MustPassGate(scenarios=("desk-00001",)), CategoryGate(max_drop_by_category={kinds[0]: 0.2})), heldout
    )
    with pytest.raises(ConfigError, match="must_pass: desk-9"):
        check_gate_scenarios((MustPassGate(scenarios=("desk-00001", "desk-9")),), heldout)
    with pytest.raises(ConfigError, match=f"category refund. There are {', '.join(kinds)}"):
        check_gate_scenarios((CategoryGate(max_drop_by_category={"refund": 0.2}),), heldout)


def test_the_compared_metric_is_that_of_the_first_comparing_gate():
    """KL has no metric; success is the default."""
    assert compared_metric((KLGate(), ImprovementGate(metric="reward"), CategoryGate())) == "reward"
    assert compared_metric((KLGate(),)) == "success"


def test_a_check_without_evidence_is_shown_as_a_dash():
    """Not as a measured 0."""
    from grpo.evaluation.html_report import number

    checked: GateCheck = check(ImprovementGate(metric="reward"), CLEAR)
    assert number(checked.value) == "–"


def test_five_of_many_scenarios_are_named():
    """Of seven that must pass and were lost; of five all."""
    seven = check(MustPassGate(scenarios=tuple("0123456")), _evidence(_side("1" * 7), _side("0" * 7)))
    assert (seven.value, seven.passed) == (7, False)
    assert "failed scenarios of 7 that must succeed: 0, 1, 2, 3, 4 and 2 more" in seven.meaning
    five = check(MustPassGate(scenarios=tuple("01234")), _evidence(_side("1" * 5), _side("0" * 5)))
    assert five.meaning.endswith("failed scenarios of 5 that must succeed: 0, 1, 2, 3, 4")


OWN_GATES = """
from grpo.evaluation.schema import GateCheck

def no_apology(evidence, word: str = "sorry", max_share: float = 0.0):
    replies = [t.messages[-1].content for t in evidence.candidate]
    share = sum(word in reply for reply in replies) / len(replies)
    return GateCheck.of("apologies", share, "<=", max_share, f"share of episodes that end with {word!r}")

class Floor:
    def __init__(self, floor: float):
        self.floor = floor

    def __call__(self, evidence):
        return GateCheck.of("floor", evidence.evaluation.overall.candidate.mean, ">=", self.floor, "success")

def undecided(evidence):
    return True

def fails(evidence):
    return 1 / 0

def no_value(evidence):
    return GateCheck(name="x", value=None, relation=">", bound=0.5, passed=True, meaning="nothing was measured")

def forgets_failures(evidence):
    evidence.candidate[:] = [t for t in evidence.candidate if t.outcome.success]
    return GateCheck.of("x", 1.0, ">=", 0.0, "forgotten")

def against_its_value(evidence):
    return GateCheck(name="x", value=0.4, relation=">", bound=0.5, passed=True, meaning="too low")
"""


def _own(name: str, **options: object) -> PythonGate:
    return PythonGate.model_validate({"kind": "python", "object": f"own_gates:{name}", "options": options})


@pytest.fixture
def own_gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates in a module of the user's."""
    (tmp_path / "own_gates.py").write_text(OWN_GATES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_gates", raising=False)


def test_a_gate_of_ones_own_decides_with_the_others(own_gates: None):
    """Functions and classes, with options: one of four replies is an apology."""
    replies = ["ok", "ok", "sorry", "ok"]
    after = [_played(str(k), True, reply=reply) for k, reply in enumerate(replies)]
    evidence = _evidence(_side("0000"), after)
    decision = gate(evidence, (_own("no_apology"), _own("Floor", floor=0.9)))
    assert (decision.verdict, decision.reason) == ("refuse", "apologies is 0.25, must be <= 0")
    assert gate(evidence, (_own("no_apology", max_share=0.25), _own("Floor", floor=0.9))).verdict == "promote"


def test_a_gate_of_ones_own_that_gives_no_check_is_refused(own_gates: None):
    """Another result, an exception, and a misspelt option."""
    with pytest.raises(ConfigError, match=r"gate own_gates:undecided returned True\. Return GateCheck\.of"):
        check(_own("undecided"), CLEAR)
    with pytest.raises(
        ConfigError, match=r"gate own_gates:fails raised ZeroDivisionError.*\(own_gates\.py:\d+, fails\)\. Correct it"
    ):
        check(_own("fails"), CLEAR)
    with pytest.raises(ConfigError, match=r"own_gates:no_apology has no option 'wrod'\. It takes word, max_share"):
        check(_own("no_apology", wrod="x"), CLEAR)


def test_a_gate_of_ones_own_does_not_change_what_later_gates_see(own_gates: None):
    """It removes the failed episodes from its list, and a scenario that must succeed has failed."""
    evidence = _evidence(_side("1111"), _side("1110"))
    decision = gate(evidence, (_own("forgets_failures"), MustPassGate(scenarios=tuple("0123"))))
    assert decision.verdict == "refuse"


@pytest.mark.parametrize("name", ["no_value", "against_its_value"])
def test_a_gate_of_ones_own_passes_only_by_its_value(own_gates: None, name: str):
    """A check without a value, or with one that is beyond its bound, is not believed."""
    with pytest.raises(ConfigError, match=rf"gate own_gates:{name} passes with the value .*Make its result with"):
        check(_own(name), CLEAR)


def _with_conversations(
    base: tuple[str, str], *given: tuple[tuple[str, ...], str, str], category: str = "a", **changes: object
) -> Evidence:
    """Results of champion and candidate on base scenarios of category a, and on conversations by their keys."""
    before, after = _side(base[0], prefix="base-"), _side(base[1], prefix="base-")
    origins: dict[str, tuple[str, ...]] = {}
    for number, (keys, *sides) in enumerate(given):
        for results, episodes in zip(sides, (before, after), strict=True):
            episodes += _side(results, prefix=f"live-{number}-", category=category, **changes)
        origins |= {f"live-{number}-{k}": keys for k in range(len(sides[0]))}
    return replace(_evidence(before, after), strata=Strata(origins))


SAME, GAIN, LOSS = ("10" * 20, "10" * 20), ("0" * 40, "1" * 40), ("1" * 40, "1" * 30 + "0" * 10)
"""40 scenarios each: no difference, from none to all, and a quarter lost."""


def _failed(evidence: Evidence, *gates: GateSettings) -> list[str]:
    return [result.name for result in gate(evidence, gates or DEFAULT_GATES).checks if not result.passed]


def test_a_log_of_which_no_conversation_is_held_out_is_judged_on_base_scenarios():
    """There is a check of them, and none of conversations."""
    before, after = (_side(results, prefix="base-") for results in GAIN)
    evidence = replace(_evidence(before, after), strata=Strata({"live-0-0": ("k",)}))
    names = [result.name for result in gate(evidence, [ImprovementGate()]).checks]
    assert names == ["improvement in success", "change in success, base scenarios"]


def test_a_gain_on_conversations_does_not_hide_a_loss_on_base_scenarios():
    """40 conversations gain 1 each, and 10 of 40 base scenarios are lost: +.375 on the whole, -.25 on the base, which
    the category gate sees as well."""
    evidence = _with_conversations(LOSS, (("k",), *GAIN))
    assert check(ImprovementGate(), evidence).passed
    assert _failed(evidence) == ["change in success, base scenarios", "worst category"]


def test_a_gain_on_conversations_of_the_only_key_is_promoted():
    """A deployment with one key, whose customers changed: nothing is lost on the base."""
    assert gate(_with_conversations(SAME, (("k",), *GAIN)), DEFAULT_GATES).verdict == "promote"


def _with_keys(keys: int) -> ImprovementGate:
    return ImprovementGate(colluding_keys=keys)


def test_no_single_key_decides_a_promotion():
    """The flood gains, the base and the other key's conversations do not: refused, unless one key may decide."""
    evidence = _with_conversations(SAME, (("flood",), *GAIN), (("honest",), *SAME))
    assert _failed(evidence, _with_keys(1)) == ["improvement in success without any one key"]
    assert _failed(evidence, _with_keys(0)) == []
    [meaning] = [result.meaning for result in gate(evidence, [_with_keys(1)]).checks if not result.passed]
    assert "without flood, the key or keys that raise it most" in meaning


def test_copies_under_several_keys_do_not_decide_either():
    """Each key of the flood sent each of its conversations: without any of them nothing is left of it."""
    flood = tuple(f"flood-{k}" for k in range(10))
    evidence = _with_conversations(SAME, (flood, *GAIN), (("honest",), *SAME))
    assert _failed(evidence, _with_keys(1)) == ["improvement in success without any one key"]


def test_keys_that_collude_do_not_decide_if_no_more_of_them_are_expected():
    """Two keys gain on 40 conversations each and the third does not: one of them left out leaves the other's gain."""
    evidence = _with_conversations(SAME, (("a",), *GAIN), (("b",), *GAIN), (("honest",), *SAME))
    assert _failed(evidence, _with_keys(1)) == []
    assert _failed(evidence, _with_keys(2)) == ["improvement in success without any 2 keys"]
    assert evidence.most_helpful_keys("success", 2) == ("a", "b")
    assert evidence.most_helpful_keys("success", 9) == ("a", "b", "honest")


def test_keys_are_chosen_one_after_another_by_what_the_ones_before_have_left():
    """a has 40 conversations of +1, of which 30 are b's as well; c has 20 of +1; the base has 40 of 0.
    Means without one key: a 20/60, b 30/70, c 40/80. After a, b has 0 conversations, so its mean is 20/60, and c's is
    0/40: c is second."""
    gain = {k: ("0" * k, "1" * k) for k in (10, 20, 30)}
    evidence = _with_conversations(SAME, (("a", "b"), *gain[30]), (("a",), *gain[10]), (("c",), *gain[20]))
    assert evidence.most_helpful_keys("success", 2) == ("a", "c")


def test_if_all_keys_are_left_out_the_base_decides():
    """Exactly as many keys as are left out: a gain that the base shows is promoted, and one that only their
    conversations show is not."""
    keys = (("a",), *GAIN), (("b",), *GAIN)
    assert gate(_with_conversations(GAIN, *keys), DEFAULT_GATES).verdict == "promote"
    assert _failed(_with_conversations(SAME, *keys)) == ["improvement in success without any 2 keys"]


def test_a_gain_of_more_keys_than_may_collude_is_promoted():
    """Without any two of them the third one still shows it."""
    keys = [((name,), *GAIN) for name in "abc"]
    assert gate(_with_conversations(SAME, *keys), DEFAULT_GATES).verdict == "promote"


def test_a_key_without_held_out_conversations_counts():
    """Its conversations are all in training: the flood is not the only key."""
    evidence = _with_conversations(SAME, (("flood",), *GAIN))
    origins = {**evidence.strata.origins, "in-training": ("honest",)}
    assert _failed(replace(evidence, strata=Strata(origins))) == ["improvement in success without any 2 keys"]


def test_categories_of_conversations_are_one_group_of_the_category_gate():
    """Ten conversations in a category of their own are lost among 40 that gain: no category of its own fails, and none
    of the base is helped by those that bear its name."""
    evidence = _with_conversations(SAME, (("k",), "1" * 10, "0" * 10), (("k",), *GAIN), category="refund")
    assert check(CategoryGate(), evidence).passed
    hidden = _with_conversations(LOSS, (("k",), *GAIN), category="a")
    assert "in category a" in check(CategoryGate(), hidden).meaning
    assert not check(CategoryGate(), hidden).passed
    lost = _with_conversations(SAME, (("k",), *LOSS), category="a")
    assert "in category conversations of every category" in check(CategoryGate(), lost).meaning


def test_conversations_without_an_outcome_do_not_starve_the_category_gate():
    """A category of clients in which nothing is verified is no missing evidence."""
    evidence = _with_conversations(GAIN, (("k",), "11", "11"))
    unjudged = [replace(t, outcome=None) if t.scenario_id in evidence.strata.origins else t for t in evidence.candidate]
    assert check(CategoryGate(), replace(evidence, candidate=unjudged)).passed


def test_without_base_scenarios_an_improvement_has_no_evidence():
    """Only conversations are held out."""
    evidence = _with_conversations(("", ""), (("k",), *GAIN))
    assert "change in success, base scenarios: no evidence" in gate(evidence, DEFAULT_GATES).reason


def test_shares_are_those_of_the_base_as_well():
    """2 of 40 base episodes fail: .05 of them, and .02 of 100 with the conversations, which is within .02."""
    evidence = _with_conversations(SAME, (("k",), "1" * 60, "1" * 60))
    failing = [
        replace(t, stop="failed", outcome=None) if t.scenario_id in ("base-0", "base-2") else t
        for t in evidence.candidate
    ]
    evaluation = evidence.evaluation.model_copy(update={"failed_share": 0.02})
    evidence = replace(evidence, candidate=failing, evaluation=evaluation)
    assert _failed(evidence, FailureGate()) == ["failed episodes, base scenarios"]
    [_, base] = gate(evidence, (FailureGate(),)).checks
    assert base.value == 0.05


def test_pass_hat_k_is_that_of_the_base():
    """A floor is not reached by conversations: 20 of 40 base scenarios always succeed, 60 of 60 conversations do."""
    evidence = _with_conversations(SAME, (("k",), "1" * 60, "1" * 60))
    result = check(PassGate(k=1, floor=0.6), evidence)
    assert not result.passed
    assert "0.500 over 40 scenarios" in result.meaning


def test_a_plain_run_has_no_check_of_strata():
    """As many checks as gates."""
    assert len(gate(CLEAR, DEFAULT_GATES).checks) == len(DEFAULT_GATES)


def test_categories_of_conversations_cannot_be_named_in_the_category_gate():
    """A limit of one category is for a category of the base."""
    [base, live] = desk_scenarios(2)
    origin = live.metadata.model_copy(update={"category": "theirs", "origin": Origin()})
    settings = CategoryGate(max_drop_by_category={"theirs": 0.5})
    with pytest.raises(ConfigError, match="no held-out scenario is of category theirs"):
        check_gate_scenarios([settings], [base, live.model_copy(update={"metadata": origin})])
