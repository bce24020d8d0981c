"""BFCL's multi-turn tasks in the worlds that are here."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from grpo.errors import DataError
from grpo.messages import Message, ToolCall
from grpo.scenarios.scenario import Scenario
from tests.grpo.environments.bfcl import FOLDER, WORLD, bfcl_scenarios, held_back, published, run_calls

RETURNS = {
    "get_flight_cost": "travel_cost_list",
    "compute_exchange_rate": "exchanged_value",
    "estimate_distance": "distance",
}
USES = {
    "compute_exchange_rate": ("get_flight_cost", "value"),
    "set_budget_limit": ("compute_exchange_rate", "budget_limit"),
    "estimate_drive_feasibility_by_mileage": ("estimate_distance", "distance"),
    "logarithm": ("estimate_distance", "value"),
}
NOT_PLAYABLE = "bfcl-multi_turn_base_173"


def _playable() -> list[Scenario]:
    return [scenario for scenario in bfcl_scenarios() if scenario.id != NOT_PLAYABLE]


async def _play(scenario: Scenario, calls: Sequence[dict[str, Any]]) -> bool:
    """Success of an agent that makes these calls and then only replies."""
    state = await WORLD.reset(scenario)
    for call in calls:
        made = ToolCall(name=call["name"], arguments=call["arguments"])
        state = (await WORLD.step(state, Message(role="assistant", content="", tool_calls=(made,)))).state
    while not state.done:
        state = (await WORLD.step(state, Message(role="assistant", content="Done."))).state
    return WORLD.verify(state).success


@published
def test_the_published_calls_run_in_every_task_but_one():
    """199 tasks with 1137 calls, none of which fails."""

    async def run() -> tuple[int, int, list[str]]:
        tasks = _playable()
        steps = [(scenario.id, step) for scenario in tasks for step in [s async for s in WORLD.replay(scenario)]]
        return len(tasks), len(steps), [f"{name}: {step.call}" for name, step in steps if step.failed]

    assert asyncio.run(run()) == (199, 1137, [])


@published
def test_amounts_that_later_calls_use_are_those_that_earlier_calls_returned():
    """3 fares are exchanged, 8 exchanged sums become the budget, and 11 distances are calculated with."""

    async def run() -> tuple[list[Any], list[Any]]:
        used, returned = [], []
        for scenario in _playable():
            last: dict[str, Any] = {}
            async for step in WORLD.replay(scenario):
                source, argument = USES.get(step.call.name, ("", ""))
                if source in last and step.call.arguments.get("base_currency", "USD") == "USD":  # a fare is in dollars
                    used.append((source, step.call.arguments[argument]))
                    returned.append((source, last[source]))
                if step.call.name in RETURNS:
                    value = step.result[RETURNS[step.call.name]]
                    last[step.call.name] = value[0] if isinstance(value, list) else value
        return used, returned

    used, returned = asyncio.run(run())
    assert used == returned
    assert Counter(source for source, _ in used) == {
        "get_flight_cost": 3,
        "compute_exchange_rate": 8,
        "estimate_distance": 11,
    }


@published
def test_the_unplayable_task_is_named_with_its_reason():
    """Its ticket has words for a number, which the documents of the tool forbid."""
    (scenario,) = [scenario for scenario in bfcl_scenarios() if scenario.id == NOT_PLAYABLE]
    with pytest.raises(DataError, match=r"173 is not playable.*close_ticket.*'ticket_001' is not of type 'integer'"):
        asyncio.run(WORLD.reset(scenario))


@published
def test_the_published_calls_succeed_and_silence_fails():
    """An agent that makes the expected calls succeeds in all 199 tasks; one without calls in none."""

    async def run() -> tuple[int, int]:
        tasks = _playable()
        right = [await _play(scenario, scenario.expected.calls) for scenario in tasks]
        return sum(right), sum([await _play(scenario, []) for scenario in tasks])

    assert asyncio.run(run()) == (199, 0)


async def _play_by_turn(scenario: Scenario, calls: Sequence[dict[str, Any]]) -> bool:
    """Success of an agent that makes each call in its turn, or as soon as its tool is there."""
    arrival = {tool["name"]: tool.get("from_turn", 0) for tool in scenario.tools}
    state, turn = await WORLD.reset(scenario), 0
    while not state.done:
        for call in calls:
            if max(call["turn"], arrival[call["name"]]) == turn:
                made = ToolCall(name=call["name"], arguments=call["arguments"])
                state = (await WORLD.step(state, Message(role="assistant", content="", tool_calls=(made,)))).state
        state = (await WORLD.step(state, Message(role="assistant", content="Done."))).state
        turn += 1
    return WORLD.verify(state).success


@published
def test_tasks_whose_first_tool_comes_late_are_played_to_the_end():
    """With the first expected tool held back, the same 199 tasks succeed by the expected calls and none without."""

    async def run() -> tuple[int, int]:
        tasks = [task for scenario in _playable() if (task := held_back(scenario)) is not None]
        right = [await _play_by_turn(task, task.expected.calls) for task in tasks]
        return sum(right), sum([await _play_by_turn(task, []) for task in tasks])

    assert asyncio.run(run()) == (199, 0)


@pytest.mark.skipif(
    not (FOLDER / "BFCL_v4_multi_turn_miss_func.json").exists(), reason=f"no published miss_func tasks in {FOLDER}"
)
def test_the_published_tasks_with_a_missing_function_are_played():
    """199 of 200 succeed by the published calls, none by silence; 173 is not playable for the same reason as in base.

    Task 49's own solution uses `tail` two turns before the task brings it: here it is called when it is there.
    """

    async def run() -> tuple[int, int]:
        tasks = [task for task in bfcl_scenarios("miss_func") if not task.id.endswith("_173")]
        right = [await _play_by_turn(task, task.expected.calls) for task in tasks]
        return sum(right), sum([await _play_by_turn(task, []) for task in tasks])

    assert asyncio.run(run()) == (199, 0)


@published
def test_a_missing_last_change_fails():
    """Without the last call that changed something, no task is a success."""

    async def run() -> list[str]:
        lucky = []
        for scenario in _playable():
            changes = [step.changed async for step in WORLD.replay(scenario)]
            if any(changes):
                last = len(changes) - 1 - changes[::-1].index(True)
                calls = scenario.expected.calls
                if await _play(scenario, (*calls[:last], *calls[last + 1 :])):
                    lucky.append(scenario.id)
        return lucky

    assert asyncio.run(run()) == []


DISK = {"root": {"home": {"type": "directory", "contents": {
    "b.txt": {"type": "file", "content": "two\none"},
    ".hidden": {"type": "file", "content": ""},
    "sub": {"type": "directory", "contents": {"b.txt": {"type": "file", "content": "two\nten"}}}}}}}  # fmt: skip


def test_files_are_read_without_changing_them():
    """Line counts, order, search, sizes: worked out by hand on "two\\none", 7 bytes, and "two\\nten", 7 bytes."""
    results, disk = run_calls(
        "GorillaFileSystem", DISK,
        ("ls", {}), ("ls", {"a": True}), ("sort", {"file_name": "b.txt"}), ("wc", {"file_name": "b.txt", "mode": "c"}),
        ("grep", {"file_name": "b.txt", "pattern": "on"}), ("tail", {"file_name": "b.txt", "lines": 1}),
        ("find", {"path": ".", "name": "b."}), ("du", {"human_readable": True}), ("pwd", {}),
    )  # fmt: skip
    assert [next(iter(result.values())) for result in results] == [
        ["b.txt", "sub"],
        ["b.txt", ".hidden", "sub"],
        "one\ntwo",
        7,
        ["one"],
        "one",
        ["./b.txt", "./sub/b.txt"],
        "14.00 B",
        "/home",
    ]
    assert disk["root"] == DISK["root"]


def test_files_are_moved_copied_and_removed_within_the_open_folder():
    """A folder takes the file in, another name renames it, a taken name is refused."""
    results, disk = run_calls(
        "GorillaFileSystem", DISK,
        ("mv", {"source": "b.txt", "destination": "sub"}), ("mv", {"source": "b.txt", "destination": "a.txt"}),
        ("cp", {"source": "a.txt", "destination": "sub"}), ("rmdir", {"dir_name": "sub"}),
        ("rm", {"file_name": "a.txt"}), ("cd", {"folder": "sub/b"}), ("cd", {"folder": "sub"}),
        ("diff", {"file_name1": "a.txt", "file_name2": "b.txt"}), ("cd", {"folder": ".."}), ("cd", {"folder": ".."}),
    )  # fmt: skip
    assert [("error" in result) for result in results] == [True] + [False] * 2 + [True, False, True] + [False] * 3 + [
        True
    ]
    assert results[7] == {"diff_lines": "- one\n+ ten"}
    home = disk["root"]["home"]["contents"]
    assert (list(home), list(home["sub"]["contents"])) == ([".hidden", "sub"], ["b.txt", "a.txt"])


def test_numbers_are_calculated():
    """log₂ 8 = 3, √2 to three digits, σ of 2 and 4 is 1, 5 km are 5000 m; division by zero is refused."""
    results, _ = run_calls(
        "MathAPI", {},
        ("logarithm", {"value": 8, "base": 2, "precision": 5}), ("square_root", {"number": 2, "precision": 3}),
        ("standard_deviation", {"numbers": [2, 4]}), ("mean", {"numbers": [1, 2, 6]}),
        ("si_unit_conversion", {"value": 5, "unit_in": "km", "unit_out": "m"}), ("divide", {"a": 1, "b": 0}),
        ("power", {"base": -8, "exponent": 0.5}), ("mean", {"numbers": []}),
    )  # fmt: skip
    assert [result.get("result") for result in results] == [3.0, 1.41, 1.0, 3.0, 5000.0, None, None, None]


def test_messages_need_a_login_and_a_known_receiver():
    """The fifth person gets the fifth id; deleted messages are gone."""
    results, state = run_calls(
        "MessageAPI", {},
        ("send_message", {"receiver_id": "USR002", "message": "Hi"}), ("message_login", {"user_id": "USR001"}),
        ("add_contact", {"user_name": "Eve"}), ("send_message", {"receiver_id": "USR005", "message": "Hi Eve"}),
        ("send_message", {"receiver_id": "USR009", "message": "?"}), ("search_messages", {"keyword": "EVE"}),
        ("delete_message", {"receiver_id": "USR005"}), ("view_messages_sent", {}),
    )  # fmt: skip
    assert ["error" in result for result in results] == [True, False, False, False, True, False, False, False]
    assert results[2]["user_id"] == "USR005"
    assert results[5]["results"] == [{"receiver_id": "USR005", "message": "Hi Eve"}]
    assert (results[7]["messages"], state["inbox"]) == ({}, [])


def test_posts_belong_to_the_logged_in_user():
    """Nothing is posted before; a comment needs its post; a second retweet fails."""
    results, state = run_calls(
        "TwitterAPI", {},
        ("post_tweet", {"content": "no"}), ("authenticate_twitter", {"username": "john", "password": "x"}),
        ("authenticate_twitter", {"username": "john", "password": "john123"}),
        ("post_tweet", {"content": "Hello", "tags": ["#a"]}), ("comment", {"tweet_id": 0, "comment_content": "Hi"}),
        ("comment", {"tweet_id": 5, "comment_content": "Hi"}), ("retweet", {"tweet_id": 0}),
        ("retweet", {"tweet_id": 0}), ("mention", {"tweet_id": 0, "mentioned_usernames": ["@b"]}),
        ("follow_user", {"username_to_follow": "alice"}),
        ("search_tweets", {"keyword": "#A"}),
    )  # fmt: skip
    assert "error" in results[0]
    assert results[1] == {"authentication_status": False}
    assert "error" in results[5]
    assert [results[6]["retweet_status"], results[7]["retweet_status"]] == [
        "Successfully retweeted",
        "Already retweeted",
    ]
    assert results[9] == {"follow_status": False}
    assert results[10] == [{"id": 0, "username": "john", "content": "Hello", "tags": ["#a"], "mentions": ["@b"]}]
    assert state["comments"] == {"0": [{"username": "john", "content": "Hi"}]}


def test_tickets_need_a_login_and_are_closed_once():
    """Priorities go from 1 to 5, and only four fields can be edited."""
    results, state = run_calls(
        "TicketAPI", {},
        ("create_ticket", {"title": "t"}), ("ticket_login", {"username": "ann", "password": "p"}),
        ("create_ticket", {"title": "t", "priority": 6}), ("create_ticket", {"title": "t", "priority": 5}),
        ("edit_ticket", {"ticket_id": 1, "updates": {"owner": "bob"}}),
        ("edit_ticket", {"ticket_id": 1, "updates": {"priority": 2, "title": None}}),
        ("resolve_ticket", {"ticket_id": 1, "resolution": "done"}),
        ("resolve_ticket", {"ticket_id": 1, "resolution": "x"}),
        ("get_user_tickets", {"status": "resolved"}), ("close_ticket", {"ticket_id": 2}),
    )  # fmt: skip
    assert ["error" in result for result in results] == [
        True, False, True, False, True, False, False, True, False, True,
    ]  # fmt: skip
    ticket = {"id": 1, "title": "t", "description": "", "status": "Resolved", "priority": 2, "created_by": "ann",
              "resolution": "done"}  # fmt: skip
    assert results[8] == state["ticket_queue"] == [ticket]


def test_messages_are_found_as_the_tasks_write_them():
    """One text, several, or several by sender, of one receiver."""
    inbox = [{"USR001": "Hi"}, {"USR002": ["Ho", "Hu"]}, {"USR003": {"USR001": ["He"]}}, {"USR004": {}}]
    results, _ = run_calls("MessageAPI", {"current_user": "USR001", "inbox": inbox}, ("view_messages_sent", {}))
    assert results == [{"messages": {"USR001": ["Hi"], "USR002": ["Ho", "Hu"], "USR003": ["He"]}}]


def test_a_ticket_without_a_number_is_not_found():
    """Some tasks queue such tickets."""
    queue = [{"ticket_001": {"title": "t"}}, {"id": 7, "title": "u"}]
    results, _ = run_calls(
        "TicketAPI", {"ticket_queue": queue}, ("get_ticket", {"ticket_id": 7}), ("close_ticket", {"ticket_id": 1})
    )
    assert results == [{"id": 7, "title": "u"}, {"error": "Ticket with ID 1 not found."}]
