"""PandaLM: replies that three people compared."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grpo.scenarios.reward_data import read_pairs


def comparison(number: int, votes: tuple[int, int, int] = (1, 1, 2), **more: Any) -> dict[str, Any]:
    """Two replies with three votes."""
    return {
        "idx": number,
        "motivation_app": "Gmail",
        "cmp_key": "a_b",
        "instruction": "Be brief.",
        "input": "Once.",
        "response1": "One",
        "response2": "Two",
        **{f"annotator{index}": vote for index, vote in enumerate(votes, start=1)},
        **more,
    }


@pytest.mark.parametrize(
    ("votes", "chosen"), [((1, 1, 2), "One"), ((2, 1, 2), "Two"), ((0, 1, 1), "One"), ((2, 2, 2), "Two")]
)
def test_the_majority_decides(folder, votes, chosen):
    """Two of three are enough."""
    (pair,) = read_pairs("pandalm", folder({"testset-v1.json": [comparison(0, votes)]})).items
    assert pair.chosen.content == chosen
    assert {pair.chosen.content, pair.rejected.content} == {"One", "Two"}


@pytest.mark.parametrize("votes", [(0, 0, 0), (0, 0, 1), (0, 1, 2), (1, 0, 2)])
def test_a_tie_is_quarantined(folder, votes):
    """Both a majority for a tie and three different votes."""
    parsed = read_pairs("pandalm", folder({"testset-v1.json": [comparison(0, votes)]}))
    assert (parsed.items, parsed.reasons) == ((), {"tie": 1})


def test_replies_that_are_not_text_or_empty_are_counted(folder):
    """Neither reply may be a JSON boolean; a vote of 3 is invalid."""
    items = [
        comparison(0, response1=True),
        comparison(1, response2=False),
        comparison(2, response2=" "),
        comparison(3, (3, 1, 1)),
        comparison(4),
        comparison(4),
    ]
    parsed = read_pairs("pandalm", folder({"testset-v1.json": items}))
    assert parsed.records == 6
    assert parsed.reasons == {
        "reply is not text": 2,
        "rejected: reply is empty": 1,
        "not as published": 1,
        "duplicate id": 1,
    }


def test_the_prompt_is_the_instruction_and_its_input(folder):
    """An empty part leaves no blank lines."""
    items = [comparison(0), comparison(1, input=""), comparison(2, instruction=" ")]
    parsed = read_pairs("pandalm", folder({"testset-v1.json": items}))
    assert [pair.prompt[0].content for pair in parsed.items] == ["Be brief.\n\nOnce.", "Be brief.", "Once."]


def test_every_published_comparison_is_a_pair_or_quarantined(published):
    """999 comparisons: 6 with booleans, 105 ties, 52 with an empty reply, 836 pairs."""
    folder = published("pandalm")
    raw = json.loads((folder / "testset-v1.json").read_text())
    odd = [x for x in raw if isinstance(x["response1"], bool) or isinstance(x["response2"], bool)]
    rest = [x for x in raw if x not in odd]
    tied = [x for x in rest if all([x[f"annotator{n}"] for n in (1, 2, 3)].count(vote) < 2 for vote in (1, 2))]
    empty = [x for x in rest if x not in tied and not (x["response1"].strip() and x["response2"].strip())]
    parsed = read_pairs("pandalm", folder)
    assert [place.line - 1 for place in parsed.quarantined if place.reason.kind == "reply is not text"] == [
        157, 158, 159, 161, 162, 164,
    ]  # fmt: skip
    assert (len(odd), len(tied), len(empty)) == (6, 105, 52)
    assert (parsed.records, len(parsed.items)) == (len(raw), len(raw) - 6 - 105 - 52) == (999, 836)
    assert parsed.reasons["tie"] == len(tied)
