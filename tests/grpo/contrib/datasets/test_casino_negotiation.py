"""CaSiNo: negotiations with a goal, a deal and points; and the satisfaction of the other camper."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from grpo.scenarios.reward_data import read_labels

OFFER = {
    "issue2youget": {"Food": "3", "Water": "0", "Firewood": "1"},
    "issue2theyget": {"Food": "0", "Water": "3", "Firewood": "2"},
}


def camper(high: str, medium: str, low: str, points: int, satisfaction: str) -> dict[str, Any]:
    """A participant with these priorities and this outcome."""
    ranks = {"High": high, "Medium": medium, "Low": low}
    return {
        "value2issue": ranks,
        "value2reason": {rank: f"{issue} matters " for rank, issue in ranks.items()},
        "outcomes": {"points_scored": points, "satisfaction": satisfaction, "opponent_likeness": "Undecided"},
    }


def dialogue(number: int, *, user: int, agent: int, end: str = "Accept-Deal") -> dict[str, Any]:
    """B begins, so B is the user, and offers: 3 food and 1 firewood for B, 3 water and 2 firewood for A.

    B: food 5, water 4, firewood 3 a package → 3·5 + 1·3 = 18.  A: water 5, firewood 4, food 3 → 3·5 + 2·4 = 23.
    """
    lines = [("B", "Hi.", {}), ("A", "Hello.", {}), ("B", "Submit-Deal", OFFER), ("A", end, {"data": end})]
    return {
        "dialogue_id": number,
        "chat_logs": [{"id": speaker, "text": text, "task_data": data} for speaker, text, data in lines],
        "participant_info": {
            "A": camper("Water", "Firewood", "Food", agent, "Undecided"),
            "B": camper("Food", "Water", "Firewood", user, "Slightly satisfied"),
        },
        "annotations": [],
    }


def source(folder: Any, *train: Any, valid: tuple[Any, ...] = ()) -> Any:
    """A folder with these dialogues."""
    return folder({"casino_train.json": list(train), "casino_valid.json": list(valid)})


def test_the_first_camper_is_the_user_with_a_goal(folder, ingested):
    """The user's priorities and reasons are the goal, the agent's are its context."""
    _, (scenario,) = ingested("casino_negotiation", source(folder, dialogue(1, user=18, agent=23)))
    assert scenario.goal.splitlines()[1] == "High priority: Food, because: Food matters"
    assert scenario.context.splitlines()[1] == "High priority: Water, because: Water matters"
    assert scenario.user_responses == ()


def test_the_deal_and_the_points_are_the_expected_state(folder, ingested):
    """The offering camper gets `issue2youget`; the points are worked out above."""
    _, (scenario,) = ingested("casino_negotiation", source(folder, dialogue(1, user=18, agent=23)))
    assert scenario.expected.state == {
        "deal": {"user": {"Firewood": 1, "Food": 3, "Water": 0}, "agent": {"Firewood": 2, "Food": 0, "Water": 3}},
        "points": {"user": 18, "agent": 23},
    }


def test_the_last_offer_is_the_deal(folder, ingested):
    """A rejected offer before it is ignored."""
    item = dialogue(1, user=18, agent=23)
    greedy = {"issue2youget": {"Food": "3", "Water": "3", "Firewood": "3"}, "issue2theyget": {}}
    item["chat_logs"][2:2] = [
        {"id": "A", "text": "Submit-Deal", "task_data": greedy},
        {"id": "B", "text": "Reject-Deal", "task_data": {"data": "reject_deal"}},
    ]
    _, (scenario,) = ingested("casino_negotiation", source(folder, item))
    assert scenario.expected.state["deal"]["agent"] == {"Firewood": 2, "Food": 0, "Water": 3}


def test_walking_away_gives_five_points_to_both(folder, ingested):
    """The deal is None."""
    _, (scenario,) = ingested("casino_negotiation", source(folder, dialogue(1, user=5, agent=5, end="Walk-Away")))
    assert scenario.expected.state == {"deal": None, "points": {"user": 5, "agent": 5}}


def test_wrong_points_and_a_dialogue_without_end_are_quarantined(folder, ingested):
    """17 is not 18; an offer without an answer does not end a dialogue."""
    bad = [dialogue(2, user=17, agent=23), dialogue(3, user=18, agent=23, end="Hm.")]
    crowd, bare = dialogue(4, user=18, agent=23), dialogue(5, user=18, agent=23)
    crowd["participant_info"]["C"] = crowd["participant_info"]["A"]
    bare["chat_logs"][2]["task_data"] = {}
    counts, _ = ingested("casino_negotiation", source(folder, dialogue(1, user=18, agent=23), *bad, crowd, bare))
    assert counts.reasons == {
        "points do not follow from the deal": 1,
        "no end": 1,
        "not two campers": 1,
        "not as published": 1,
    }


@pytest.mark.parametrize(
    ("agent", "difficulty"),
    [
        (("Water", "Firewood", "Food"), "easy"),
        (("Food", "Firewood", "Water"), "medium"),
        (("Food", "Water", "Firewood"), "hard"),
    ],
)
def test_shared_priorities_are_harder(folder, ingested, agent, difficulty):
    """The user wants food, then water, then firewood: the agent shares none, one, all of these ranks."""
    item = dialogue(1, user=5, agent=5, end="Walk-Away")
    item["participant_info"]["A"] = camper(*agent, 5, "Undecided")
    _, (scenario,) = ingested("casino_negotiation", source(folder, item))
    assert scenario.metadata.difficulty == difficulty


def test_a_dialogue_is_labelled_with_the_users_satisfaction(folder):
    """The reply is the agent's last line; the score is the agent's points."""
    parsed = read_labels("casino_negotiation", source(folder, valid=(dialogue(1, user=18, agent=23),)))
    (item,) = parsed.items
    assert (item.label, item.score, item.split) == ("Slightly satisfied", 23, "heldout")
    assert [message.role for message in item.prompt] == ["user", "assistant", "user"]
    assert item.prompt[-1].content == f"Submit-Deal {json.dumps(OFFER)}"
    assert item.reply.content == "Accept-Deal"


def test_every_published_dialogue_is_a_scenario_and_a_labelled_reply(published, ingested):
    """900 + 30 dialogues, 24 of which end in walking away; all points follow from their deals."""
    folder = published("casino_negotiation")
    raw = [item for part in ("train", "valid") for item in json.loads((folder / f"casino_{part}.json").read_text())]
    away = sum(item["chat_logs"][-1]["text"] == "Walk-Away" for item in raw)
    counts, scenarios = ingested("casino_negotiation", folder)
    assert counts.records == counts.scenarios == len(raw) == 930
    assert Counter(s.split for s in scenarios) == {"train": 900, "heldout": 30}
    assert sum(s.expected.state["deal"] is None for s in scenarios) == away == 24
    labels = read_labels("casino_negotiation", folder)
    assert (labels.records, len(labels.items)) == (930, 930)
    firsts = (item["participant_info"][item["chat_logs"][0]["id"]]["outcomes"]["satisfaction"] for item in raw)
    assert Counter(item.label for item in labels.items) == Counter(firsts)
