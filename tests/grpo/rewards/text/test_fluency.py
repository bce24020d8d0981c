from __future__ import annotations

import pytest

from grpo.rewards.text.fluency import fluency
from grpo.rewards.text.language import content, stem
from grpo.rewards.text.reply import AgentReply

ASKED = "When will the blue kettle that I ordered last week be delivered to my new address?"
REPLY = "The kettle left our depot today, so it will be with you by Friday."


@pytest.mark.parametrize(
    ("reply", "check"),
    [
        ("xkcd qwrtp zzzz bnmlk fghjk the wvxz", "words"),
        ("kettle blue order delivery address week depot friday van courier", "grammar"),
        (" ".join([REPLY] * 2), "variety"),
        ("Чайник уже в пути и будет у вас в пятницу.", "script"),
        (ASKED, "original"),
        ("I'm sorry, but I can't help you with that.", "not_refused"),
        ("", "words"),
    ],
)
def test_each_kind_of_degenerate_reply_fails_its_check(reply: str, check: str):
    """At most a quarter by that check; an honest reply passes all."""
    assert fluency(AgentReply(user_turns=(ASKED,), text=reply))[check] <= 0.25
    assert min(fluency(AgentReply(user_turns=(ASKED,), text=REPLY)).values()) == 1.0


def test_a_long_reply_scores_by_its_excess_length():
    """200 different words: 100 / 200."""
    long = " ".join(f"the w{k}" for k in range(100))
    assert fluency(AgentReply(user_turns=(ASKED,), text=long))["length"] == 0.5


@pytest.mark.parametrize("forms", ["arrive arrives arrived arriving", "ship ships shipped shipping", "refund refunded"])
def test_the_forms_of_a_word_have_one_stem(forms: str):
    """A reply may use another form of the user's word."""
    assert len({stem(word) for word in forms.split()}) == 1


def test_pleasantries_are_not_content_words():
    """Only the subject remains."""
    assert content("Hello, please help me with the kettle") == {stem("kettle")}
