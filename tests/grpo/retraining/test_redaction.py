from __future__ import annotations

from grpo.retraining.redaction import Redacted
from grpo.scenarios.scenario import Expected, Scenario


def scenario(*said: str, **fields: object) -> Scenario:
    return Scenario.model_validate({"id": "conversation-1", "user_responses": said, **fields})


def test_what_the_world_does_not_need_becomes_its_kind():
    """Counted once a value; the order number stays."""
    found = Redacted(scenario("I am Anna Bell, order 9514.", "Mail anna@example.org, yes anna@example.org"))
    assert found.scenario.user_responses == ("I am [name] [name], order 9514.", "Mail [email], yes [email]")
    assert found.found == {"name": 2, "email": 1}


def test_what_the_world_needs_gets_one_pseudonym_wherever_it_stands():
    """The user's words, keys and values of the records, the expected call and the fact still fit together."""
    found = Redacted(
        scenario(
            "My mail is Anna@example.org, my name is Anna Bell.",
            world={"users": {"anna@example.org": {"first_name": "Anna", "phone": 4155550132}}},
            expected=Expected(calls=({"name": "find", "arguments": {"email": "anna@example.org"}},), facts=("Anna",)),
        )
    ).scenario
    [(email, user)] = found.world["users"].items()
    first = user["first_name"]
    assert email == "person1@example.com"
    assert first != "Anna"
    assert found.user_responses == (f"My mail is {email}, my name is {first} [name].",)
    assert found.expected.calls[0]["arguments"] == {"email": email}
    assert found.expected.facts == (first,)
    assert isinstance(user["phone"], int)
    assert user["phone"] != 4155550132


def test_a_number_that_the_world_needs_keeps_its_shape():
    """Ten digits stay ten digits in the form the user said them in."""
    found = Redacted(scenario("call 415-555-0132", world={"phone": "415-555-0132"})).scenario
    phone = found.world["phone"]
    assert found.user_responses == (f"call {phone}",)
    assert [len(part) for part in phone.split("-")] == [3, 3, 4]
    assert phone != "415-555-0132"


def test_order_numbers_survive_in_words_and_world():
    """They are what the desk's tools are called with."""
    desk = scenario("Take 4290.", world={"orders": {"4290": {"price": 212}}})
    assert Redacted(desk).scenario == desk


def test_a_street_in_capital_sharp_s_is_replaced():
    """Small and capital letters of other languages do not hide a value."""
    assert Redacted(scenario("An Hauptstraße 12, HAUPTSTRAßE 12")).scenario.user_responses == (
        "An [address], [address]",
    )


def test_two_conversations_are_not_linked_by_a_pseudonym():
    """The same number gets another one in another conversation."""
    first = Redacted(scenario("x", world={"phone": "415-555-0132"})).scenario.world["phone"]
    second = Redacted(scenario("x", id="conversation-2", world={"phone": "415-555-0132"})).scenario.world["phone"]
    assert first != second
