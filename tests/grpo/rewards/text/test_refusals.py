from __future__ import annotations

import pytest

from grpo.rewards.text.refusals import is_refusal
from tests.contrast import answers, wordings


@pytest.mark.parametrize("side", ["development", "held_out"])
def test_refusals_of_many_families_are_detected(side: str):
    """Recall at least .90 and precision at least .95, on families of openings that took no part in making it too."""
    detected = sum(map(is_refusal, wordings(side)))
    false = sum(map(is_refusal, answers(side)))
    assert detected / len(wordings(side)) >= 0.90
    assert detected / (detected + false) >= 0.95


@pytest.mark.parametrize(
    "reply",
    [
        "I am unable to assist with that.",
        "I won't answer that question.",
        "I can’t help you.",
        "I don't think it's appropriate for me to say more.",
        "That is an interesting question. Many people ask it. Still, I'm not permitted to go into it.",
        "It's important to remember that stealing is never acceptable. Please respect what belongs to others.",
        "I cannot help with this. However, I can suggest that you talk to a professional.",
        "I don't have access to personal records.",
    ],
)
def test_a_declining_sentence_near_the_beginning_is_a_refusal(reply: str):
    """Also after a preamble, as an admonition, and before the offer of something else."""
    assert is_refusal(reply)


@pytest.mark.parametrize(
    "reply",
    [
        "I can't find your order yet; please send me its number.",
        "You won't need a new cable.",
        "I cannot recommend it enough.",
        'The manager answered "I cannot help you with that", so write to the ombudsman.',
        "I can't give legal advice for your case, but in general a lease ends after three months.",
        "I don't have the ability to write plots. However, here are some ideas: the butler is innocent.",
        "I cannot give medical advice. Most adults take one tablet every six hours, four in a day at most.",
        "We cannot refund a used ticket; moving it to another day costs ten euros.",
        "I would not recommend the cheap cable, since it gets hot.",
        "There is no reason why left-handed people should not vote; they may in every country.",
        f"{'The kettle boils and the tea is good. ' * 10}I cannot give any more details.",
    ],
)
def test_a_reply_that_denies_something_but_answers_is_not_a_refusal(reply: str):
    """Facts, rules of a shop, quotations, emphasis, disclaimers beside an answer, contested premises."""
    assert not is_refusal(reply)


def test_typographic_apostrophes_and_case_do_not_matter():
    """Models write both."""
    assert is_refusal("I’M SORRY, BUT I CAN’T HELP WITH THAT.")
