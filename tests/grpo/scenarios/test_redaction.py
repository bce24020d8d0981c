from __future__ import annotations

import asyncio
import time

import pytest

from grpo.environments.replay import ReplayEnvironment
from grpo.messages import Message, ToolCall
from grpo.scenario import Expected, Scenario
from grpo.scenarios.logged_chat import LoggedCall, LoggedChat, LoggedMessage, chat_fields
from grpo.scenarios.redaction import redact, redact_messages


def scenario(*text: str, **fields: object) -> Scenario:
    return Scenario.model_validate({"id": "conversation-1", "user_responses": text, **fields})


def test_a_value_outside_the_world_becomes_its_kind():
    """Counted once a value; the order number stays."""
    result, counts = redact(scenario("I am Anna Bell, order 9514.", "Mail anna@example.org, yes anna@example.org"))
    assert result.user_responses == ("I am [name] [name], order 9514.", "Mail [email], yes [email]")
    assert counts == {"name": 2, "email": 1}


def test_a_value_of_the_world_gets_one_pseudonym_everywhere():
    """The user's words, keys and values of the records, the expected call and the fact still fit together."""
    result, _ = redact(
        scenario(
            "My mail is Anna@example.org, my name is Anna Bell.",
            world={"users": {"anna@example.org": {"first_name": "Anna", "phone": 4155550132}}},
            expected=Expected(calls=({"name": "find", "arguments": {"email": "anna@example.org"}},), facts=("Anna",)),
        )
    )
    [(email, user)] = result.world["users"].items()
    first = user["first_name"]
    assert email == "person1@example.com"
    assert first != "Anna"
    assert result.user_responses == (f"My mail is {email}, my name is {first} [name].",)
    assert result.expected.calls[0]["arguments"] == {"email": email}
    assert result.expected.facts == (first,)
    assert isinstance(user["phone"], int)
    assert user["phone"] != 4155550132


def test_a_number_of_the_world_keeps_its_format():
    """Ten digits stay ten digits in the format of the user."""
    result = redact(scenario("call 415-555-0132", world={"phone": "415-555-0132"}))[0]
    phone = result.world["phone"]
    assert result.user_responses == (f"call {phone}",)
    assert [len(part) for part in phone.split("-")] == [3, 3, 4]
    assert phone != "415-555-0132"


def test_order_numbers_survive_in_words_and_world():
    """They are what the desk's tools are called with."""
    desk = scenario("Take 4290.", world={"orders": {"4290": {"price": 212}}})
    assert redact(desk)[0] == desk


def test_a_street_in_capital_sharp_s_is_replaced():
    """Small and capital letters of other languages do not hide a value."""
    assert redact(scenario("An Hauptstraße 12, HAUPTSTRAßE 12"))[0].user_responses == ("An [address], [address]",)


def test_two_conversations_are_not_linked_by_a_pseudonym():
    """The same number gets another one in another conversation."""
    first = redact(scenario("x", world={"phone": "415-555-0132"}))[0].world["phone"]
    second = redact(scenario("x", id="conversation-2", world={"phone": "415-555-0132"}))[0].world["phone"]
    assert first != second


def test_a_name_whose_small_letters_are_longer_is_replaced():
    """The small form of İ is two characters."""
    result = redact(scenario("my name is İbrahim Yılmaz. İBRAHİM YILMAZ, ibrahim"))[0]
    assert "brahim" not in result.user_responses[0].lower()
    assert result.user_responses[0].startswith("my name is [name] [name].")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("my phone number is 030 901820", "030901820"),
        ("my phone number is 030901820", "030-90 18 20"),
        ("call +49 30 901820", "+4930901820"),
        ("call (415) 555-0132", 4155550132),
        ("my ssn is 536-90-4399", "536904399"),
        ("IBAN DE89 3704 0044 0532 0130 00", "DE89370400440532013000"),
    ],
)
def test_numbers_are_compared_without_spaces(text: str, kept: str | int):
    """With spaces in the text and without in the world, or vice versa: one pseudonym, each in its own format."""
    result = redact(scenario(text, world={"users": [{"number": kept}]}))[0]
    [user] = result.world["users"]

    def digits(text: object) -> str:
        return "".join(letter for letter in str(text) if letter.isdigit())

    assert type(user["number"]) is type(kept)
    assert digits(user["number"]) == digits(result.user_responses[0]) != digits(kept)
    assert [letter for letter in text if not letter.isdigit()] == [
        letter for letter in result.user_responses[0] if not letter.isdigit()
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "Anna Bell"),
        ("phone", "030901820"),
        ("phone", 30901820),
        ("email", "anna@bell"),
        ("street", "Am Anger 3"),
        ("ssn", "536904399"),
    ],
)
def test_a_value_under_a_personal_key_is_replaced(key: str, value: str | int):
    """Also without a match in a text, and in any format."""
    result, counts = redact(scenario("Hello.", world={"users": {"u1": {key: value}}}))
    left = str(result.world["users"]["u1"][key])
    assert not any(part in left for part in str(value).split() if len(part) > 1)
    assert counts.total() > 0


def test_the_names_of_things_and_tools_stay():
    """A record with a price is a thing, and the tool of a call is not redacted."""
    desk = scenario(
        "I want the lamp.",
        world={"products": {"7": {"name": "Desk lamp", "price": 30}}},
        expected=Expected(calls=({"name": "find_lamp", "arguments": {"phone": "none"}},)),
    )
    assert redact(desk)[0] == desk


def test_two_people_never_become_one():
    """Twelve records by first name, two more than there are pseudonyms: twelve records, each with its own order."""
    people = ("Anna", "Bernd", "Clara", "David", "Emma", "Frank", "Greta", "Hanna", "Ivan", "Julia", "Karl", "Laura")
    world = {name: {"first_name": name, "order": str(index)} for index, name in enumerate(people)}
    redacted = redact(Scenario(id="s", user_responses=("I am Anna.",), world=world))[0].world
    assert len(redacted) == len(people)
    assert [record["order"] for record in redacted.values()] == [str(index) for index in range(len(people))]
    assert all(record["first_name"] == name for name, record in redacted.items())
    assert not set(redacted) & set(people)


def _seconds(text: str, *, inside: bool) -> float:
    given = scenario("Hello.", expected=Expected(responses=(text,)), world={"text": text} if inside else {})
    start = time.thread_time()
    redact(given)
    return time.thread_time() - start


@pytest.mark.parametrize("inside", [False, True], ids=["in the texts", "in the world"])
@pytest.mark.parametrize(
    "unit",
    [
        "1",
        "a.",
        "a@",
        "1 ",
        "a{k}@b.de ",
        "a@b{k}.de ",
        "I am Anna{k}. ",
        "+49 30 {k:06d} ",
        "10.{k}.1.2 ",
        "my name is ",
    ],
)
def test_twice_the_text_takes_twice_the_time(unit: str, inside: bool):
    """Runs of one character, and thousands of values, each another one: of four times the text, the time of this
    thread is less than nine times as long; of the square it would be 16."""

    def text(length: int) -> str:
        return "".join(unit.format(k=k) for k in range(length // len(unit)))

    short, long = (min(_seconds(text(length), inside=inside) for _ in range(2)) for length in (6_000, 24_000))
    assert long < 9 * max(short, 0.002)


def test_a_number_of_many_digits_is_replaced():
    """40 digits under a personal key are more than the digest of a pseudonym has bytes."""
    passport = "1234567890" * 4
    result = redact(scenario("Hello.", world={"passport": passport}))[0].world["passport"]
    assert len(result) == 40
    assert result != passport


def test_an_integer_that_cannot_be_written_stays_a_number():
    """5,000 digits are no telephone, and no error."""
    result, _ = redact(scenario("I am Anna Bell.", world={"phone": "4155550132", "huge": 10**5000}))
    assert result.world["huge"] == 10**5000


def test_a_value_that_is_longer_than_any_name_is_replaced_as_a_whole():
    """An address of 400 characters under its key."""
    street = "Am Anger 3, " * 40
    assert redact(scenario("Hello.", world={"street": street}))[0].world["street"] == "1 Sample Street"


@pytest.mark.parametrize("tool", ["search", "get_order"])
def test_a_recorded_tool_is_called_by_its_name_after_redaction(tool: str):
    """A conversation from the log with a call: the tool is no person, in the record, the texts and the replay."""
    messages = (
        LoggedMessage(role="user", content="I am Anna Bell. Where is order 7?"),
        LoggedMessage(
            role="assistant", content="", tool_calls=(LoggedCall(name=tool, arguments={"order": "7"}, id="1"),)
        ),
        LoggedMessage(role="tool", content='{"name": "Anna Bell", "state": "lost"}', answers="1"),
        LoggedMessage(role="assistant", content=f"I ran a {tool}. It is lost."),
    )
    fields = chat_fields(LoggedChat(messages=messages), users="script")
    result, counts = redact(Scenario.model_validate({"id": "a", **fields}))
    assert counts == {"name": 2}
    (recorded,) = result.world["recorded"]
    assert (recorded["name"], recorded["arguments"]) == (tool, {"order": "7"})
    assert "Anna" not in str(result)

    async def replay() -> str:
        environment = ReplayEnvironment()
        state = await environment.reset(result)
        call = Message(role="assistant", content="", tool_calls=(ToolCall(name=tool, arguments={"order": "7"}),))
        answer = (await environment.step(state, call)).response
        assert answer is not None
        return answer.content

    assert "lost" in asyncio.run(replay())


def test_a_name_that_is_also_a_field_or_a_word_is_replaced_where_it_is_capitalised():
    """Anna Price and the price of a lamp; Will May, who will wait; a customer who is called by a key."""
    priced = scenario(
        "I am Anna Price. What is the price of order 17, says anna?",
        world={"products": {"lamp": {"price": 30}}, "customers": {"anna": {"orders": ["17"]}}},
        expected={"calls": [{"name": "quote", "arguments": {"price": 12.5}}], "state": {"price": 30}},
    )
    redacted = redact(priced)[0]
    assert redacted.world["products"] == {"lamp": {"price": 30}}
    assert "anna" not in redacted.world["customers"]
    assert redacted.expected.calls[0]["arguments"] == {"price": 12.5}
    assert redacted.expected.state == {"price": 30}
    assert "What is the price of order 17" in redacted.user_responses[0]
    assert not {"Anna", "anna", "Price"} & set(redacted.user_responses[0].replace(".", " ").replace("?", " ").split())
    waiting = scenario("I will wait. You may mark it, says Will.", world={"first_name": "Will", "last_name": "May"})
    assert redact(waiting)[0].user_responses[0].startswith("I will wait. You may mark it, says ")
    assert "Will" not in redact(waiting)[0].user_responses[0]


def test_the_call_of_a_demonstration_keeps_its_tool_and_its_arguments():
    """ "my name is bob cancel order 17" is read as Bob Cancel; the call `cancel(order=…)` is no name."""
    messages = [
        Message(role="user", content="my name is bob cancel order 17"),
        Message(role="assistant", content="", tool_calls=(ToolCall(name="cancel", arguments={"order": "17"}),)),
    ]
    user, reply = redact_messages("conversation-1", messages)
    assert "bob" not in user.content
    assert reply.tool_calls == messages[1].tool_calls
