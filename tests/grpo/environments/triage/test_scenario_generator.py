"""The triage pack."""

from __future__ import annotations

import json
import re

import pytest

from grpo.environments.support_desk.scenario_generator import expand_alternatives
from grpo.environments.triage.scenario_generator import TriagePhrasebook, Wordings, draw_scenarios
from grpo.errors import DataError
from grpo.scenario import Scenario
from tests.places import ROOT

TEAMS = {"billing", "delivery", "returns", "repairs", "accounts", "sales"}


@pytest.fixture(scope="module")
def book() -> TriagePhrasebook:
    return TriagePhrasebook.load(ROOT / "data" / "scenarios" / "triage_phrasebook.yaml")


def wordings(part: Wordings) -> set[str]:
    """Every expansion of the matters and vague openings of a split, without punctuation and case."""
    sentences = [*part.vague, *(sentence for matters in part.matters.values() for sentence in matters)]
    expansions = (wording for sentence in sentences for wording in expand_alternatives(sentence))
    return set(map(_words, expansions))


def test_training_and_held_out_customers_share_no_wording_and_no_item(book: TriagePhrasebook):
    """A memorized sentence solves no held-out scenario."""
    assert not wordings(book.train) & wordings(book.heldout)
    assert not set(book.train.items) & set(book.heldout.items)
    framed = [{frame for frame in part.frames if frame != "{matter}"} for part in (book.train, book.heldout)]
    assert not framed[0] & framed[1]


def test_demonstrations_hold_no_wording_of_held_out_customers(book: TriagePhrasebook):
    """Fine-tuning leaks none of them, with whatever item."""
    path = ROOT / "data" / "scenarios" / "triage_demonstrations.jsonl"
    messages = [m for line in path.read_text(encoding="utf-8").splitlines() for m in json.loads(line)["messages"]]
    lines = [_words(m["content"]) for m in messages if m["role"] == "user"]
    heldout = {w.replace("{item}", item) for w in wordings(book.heldout) for item in book.heldout.items}
    assert not [line for line in lines if any(wording in line for wording in heldout)]
    assert {m["tool_calls"][0]["function"]["arguments"]["team"] for m in messages if m.get("tool_calls")} == TEAMS


def test_the_pack_has_each_team_evenly_and_a_third_of_vague_openings(book: TriagePhrasebook):
    """600 scenarios: 100 of each team, no two alike, 28 to 40 % vague."""
    drawn = _drawn(book.train)
    assert len(drawn) == 600
    assert {team: sum(s.metadata.category == team for s in drawn) for team in TEAMS} == dict.fromkeys(TEAMS, 100)
    assert len({s.user_responses for s in drawn}) == 600
    assert 168 <= sum(len(s.user_responses) == 2 for s in drawn) <= 240
    assert not [s for s in drawn if re.search(r"[\[\]{}|]", " ".join(s.user_responses))]


def test_a_phrasebook_with_too_few_wordings_is_refused():
    """Two items in one sentence of one team make two scenarios, and three are asked for."""
    few = Wordings(
        scenarios=3, vague_share=0.0, items=("kettle", "lamp"), frames=("{matter}",), vague=("Hello.",),
        matters={"repairs": ("My {item} broke.",)},
    )  # fmt: skip
    with pytest.raises(DataError, match=r"train: only 2 different scenarios of 3 .* of team repairs.*lower scenarios"):
        list(draw_scenarios(few, split="train"))


def test_the_same_seed_draws_the_same_scenarios(book: TriagePhrasebook):
    """Another seed draws others."""
    again, other = (list(draw_scenarios(book.heldout, split="heldout", seed=seed)) for seed in (0, 1))
    assert again == list(draw_scenarios(book.heldout, split="heldout"))
    assert again != other


def _words(text: str) -> str:
    return " ".join(re.findall(r"[\w'{}]+", text.casefold()))


def _drawn(part: Wordings) -> list[Scenario]:
    return [Scenario.model_validate(record) for record in draw_scenarios(part, split="train")]
