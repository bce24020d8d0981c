from __future__ import annotations

import pytest

from grpo.rewards.text.fluency import prose
from grpo.rewards.text.language import content, stem
from grpo.rewards.text.reply import AgentReply

ASKED = "When will the blue kettle that I ordered last week be delivered to my new address?"
REPLY = "The kettle left our depot today, so it will be with you by Friday."


@pytest.mark.parametrize(
    ("reply", "part"),
    [
        ("xkcd qwrtp zzzz bnmlk fghjk the wvxz", "words"),
        ("kettle blue order delivery address week depot friday van courier", "grammar"),
        (" ".join([REPLY] * 2), "variety"),
        ("Чайник уже в пути и будет у вас в пятницу.", "script"),
        (ASKED, "own"),
        ("I'm sorry, but I can't help you with that.", "helping"),
        ("", "words"),
    ],
)
def test_noise_of_each_kind_is_found_by_its_part(reply: str, part: str):
    """A quarter at most where that part looks; an honest reply is whole."""
    assert prose(AgentReply(user_turns=(ASKED,), reply=reply))[part] <= 0.25
    assert min(prose(AgentReply(user_turns=(ASKED,), reply=REPLY)).values()) == 1.0


def test_a_long_reply_is_worth_what_is_read_of_it():
    """200 different words: 100 / 200."""
    long = " ".join(f"the w{k}" for k in range(100))
    assert prose(AgentReply(user_turns=(ASKED,), reply=long))["measure"] == 0.5


@pytest.mark.parametrize("forms", ["arrive arrives arrived arriving", "ship ships shipped shipping", "refund refunded"])
def test_the_forms_of_a_word_have_one_stem(forms: str):
    """So that a reply need not repeat the customer letter by letter."""
    assert len({stem(word) for word in forms.split()}) == 1


def test_pleasantries_are_no_content():
    """What is left is what the text is about."""
    assert content("Hello, please help me with the kettle") == {stem("kettle")}
