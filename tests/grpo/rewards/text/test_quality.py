from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml

from grpo.rewards import EngagementReward, HelpfulnessReward, create_domain_reward
from grpo.rewards.catalog import make_named_reward
from grpo.rewards.learned.metrics import auc
from grpo.rewards.presets import DOMAINS
from grpo.rewards.text.quality import QualityReward
from tests.contrast import questions, refusals
from tests.grpo.rewards.scoring import scored
from tests.places import ROOT

GOLDEN = ROOT / "data" / "golden"
TRIPLES = [(path.stem, triple) for path in sorted(GOLDEN.glob("*.yaml")) for triple in yaml.safe_load(path.read_text())]
ASKED = "My order 48213 is late. When will it arrive?"
ANSWER = "I'm sorry about the wait. Order 48213 left our depot this morning, so you will have it on Wednesday."


@pytest.mark.parametrize("make", [make_named_reward, create_domain_reward], ids=["reward", "preset"])
@pytest.mark.parametrize(("domain", "triple"), TRIPLES, ids=[f"{domain}-{triple['id']}" for domain, triple in TRIPLES])
def test_each_domain_ranks_its_golden_transcripts(domain: str, triple: dict[str, Any], make: Any):
    """Good above mid above bad, held-out transcripts included."""
    good, mid, bad = (scored(make(domain), triple["user"], triple[kind]).score for kind in ("good", "mid", "bad"))
    assert good > mid > bad


def test_each_domain_has_held_out_transcripts():
    """Six triples at least, two of them held out of tuning."""
    for domain in DOMAINS:
        heldout = [bool(triple.get("heldout")) for name, triple in TRIPLES if name == domain]
        assert len(heldout) >= 6
        assert sum(heldout) == 2


@pytest.mark.parametrize(
    "reply",
    [
        "order 48213 arrive late delivery order arrive when order depot shipping late arrive wednesday parcel",
        "Your order is important to us, and we hope that it makes you happy.",
        "I'm sorry, but I can't help you with order 48213.",
        "My order 48213 is late. When will it arrive?",
        "Order 48213. " * 12,
        "Order 48312 left our depot this morning, so you will have it on Wednesday.",
        "Ваш заказ уже в пути, вы получите его в среду.",
        "",
    ],
    ids=["stuffed", "near miss", "refusal", "copied", "repeated", "wrong order", "foreign", "empty"],
)
@pytest.mark.parametrize("kind", ["helpfulness", "customer_service"])
def test_a_real_answer_scores_above_imitations(kind: str, reply: str):
    """By a wide margin."""
    reward = make_named_reward(kind)
    assert scored(reward, ASKED, reply).score < 0.6 * scored(reward, ASKED, ANSWER).score


@pytest.mark.parametrize("side", ["development", "held_out"])
def test_helpfulness_ranks_answers_above_refusals_of_every_family(side: str):
    """AUC of harmless questions at least .90 over the families of wordings, and .85 for each, on held-out ones too."""
    reward, asked = HelpfulnessReward(), questions("harmless", side)
    answered = [scored(reward, question.asked, question.reply).score for question in asked]
    values = []
    for replies in refusals(side, of=asked).values():
        refused = [scored(reward, question.asked, reply).score for question, reply in replies]
        labels = [True] * len(answered) + [False] * len(refused)
        values.append(auc(np.array([*answered, *refused]), labels).value)
    assert np.mean(values) >= 0.90
    assert min(values) >= 0.85


def test_a_paraphrasing_answer_scores_above_a_refusal():
    """It repeats no word of the question, and scores more than a refusal that repeats them all."""
    asked = "Who killed Dumbledore?"
    answer = "Severus Snape did, on the Astronomy Tower in the sixth book, because the two had agreed on it."
    refusal = "I cannot help you with who killed Dumbledore."
    assert scored(HelpfulnessReward(), asked, answer).score > 2 * scored(HelpfulnessReward(), asked, refusal).score > 0


def test_helpfulness_shows_its_parts():
    """Relevance, answer and second person 1; five new content words of eight; fluency 1."""
    result = scored(HelpfulnessReward(), ASKED, ANSWER)
    assert result.breakdown["relevance"] == result.breakdown["answer"] == result.breakdown["second_person"] == 1.0
    parts = result.breakdown
    expected = (
        0.3 * parts["relevance"] + 0.35 * parts["answer"] + 0.25 * parts["information"] + 0.1 * parts["second_person"]
    )
    assert result.score == pytest.approx(expected)


def test_a_repeated_reply_scores_once():
    """The second turn gets nothing for the same words: half of the first one's mean."""
    once = scored(HelpfulnessReward(), ASKED, ANSWER).score
    twice = scored(HelpfulnessReward(), ASKED, ANSWER, ASKED, ANSWER).score
    assert twice == pytest.approx(once / 2)


def test_expected_facts_decide_two_thirds_of_the_score():
    """None stated: a third is left."""
    free = scored(HelpfulnessReward(), ASKED, ANSWER)
    missed = scored(HelpfulnessReward(), ASKED, ANSWER, facts=("Delivery takes 30 days",))
    assert missed.score == pytest.approx(free.score / 3)
    assert scored(HelpfulnessReward(), ASKED, ANSWER, facts=("You will have it on Wednesday",)).score == free.score


def test_an_identifier_from_the_context_is_correct():
    """Ticket 99120 stands in the context; without it the number is invented."""
    reply = ANSWER.replace("depot", "depot as ticket 99120")
    known = scored(HelpfulnessReward(), ASKED, reply, context="Ticket 99120 is open.").breakdown["identifiers"]
    assert (known, scored(HelpfulnessReward(), ASKED, reply).breakdown["identifiers"]) == (1.0, 0.5)


@pytest.mark.parametrize("marks", ["!!!!!!!!", "????????", "! Really? Really? You? Now? Why?"])
def test_punctuation_does_not_raise_engagement(marks: str):
    """More than two of a kind cost; eight leave nothing."""
    assert scored(EngagementReward(), ASKED, ANSWER + marks).score < scored(EngagementReward(), ASKED, ANSWER).score


def test_a_question_raises_engagement():
    """It keeps the conversation open."""
    asks = scored(EngagementReward(), ASKED, f"{ANSWER} Will somebody be at home then?")
    assert asks.score > scored(EngagementReward(), ASKED, ANSWER).score


def test_the_shares_of_a_reward_add_up_to_one():
    """So that a perfect reply scores 1."""
    for reward in QualityReward.__subclasses__():
        assert sum(reward.shares.values()) == pytest.approx(1.0)


def test_a_reply_in_the_users_language_is_fluent():
    """English function words do not apply to Spanish, and Cyrillic is expected where the user writes it."""
    spanish = scored(
        HelpfulnessReward(), "¿Cuándo llega mi pedido de tazas azules?", "Su pedido de tazas llega mañana."
    )
    russian = scored(HelpfulnessReward(), "Когда придёт мой заказ на чашки?", "Ваш заказ на чашки придёт завтра утром.")
    assert spanish.breakdown["fluency"] == russian.breakdown["fluency"] == 1.0
