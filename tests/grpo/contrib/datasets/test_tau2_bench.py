"""tau2-bench: tasks become scenarios with tools, a world and expected calls."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import Tau2Source
from grpo.contrib.datasets.tau2_bench import read_tau2_bench
from grpo.errors import DataError
from grpo.scenario import Scenario
from grpo.scenarios.ingest import ingest
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import content_hash
from grpo.scenarios.table import read_scenarios


def shopper(first: str, zip_code: str, *orders: str) -> dict[str, Any]:
    """A customer of the small shop below."""
    return {
        "name": {"first_name": first, "last_name": "Ito"},
        "address": {"zip": zip_code},
        "email": f"{first}@example.com",
        "orders": list(orders),
    }


SHOP = {
    "users": {"ann_1": shopper("Ann", "11111", "#W1", "#W2"), "bob_2": shopper("Bob", "22222", "#W3")},
    "orders": {
        "#W1": {"user_id": "ann_1", "items": [{"product_id": "100"}]},
        "#W2": {"user_id": "ann_1", "items": []},
        "#W3": {"user_id": "bob_2", "items": [{"product_id": "200"}]},
    },
    "products": {
        "100": {"variants": {"101": {}}},
        "200": {"variants": {"201": {}}},
        "300": {"variants": {"301": {}}},
        "400": {"variants": {"401": {}}},
    },
}


def task(
    task_id: str, reason: str, *actions: tuple[str, dict[str, Any]], facts: tuple[Any, ...] = ()
) -> dict[str, Any]:
    """A task with this reason of the caller and these expected calls."""
    return {
        "id": task_id,
        "user_scenario": {
            "persona": None,
            "instructions": {"reason_for_call": reason, "known_info": "You are Ann.", "unknown_info": None},
        },
        "initial_state": None,
        "evaluation_criteria": {
            "actions": [{"name": name, "arguments": arguments} for name, arguments in actions],
            "communicate_info": list(facts),
        },
    }


def records(tmp_path: Path, *tasks: Any, splits: dict[str, list[str]] | None = None) -> list[SourceRecord]:
    """Records of a shop with these tasks."""
    place = tmp_path / "retail"
    place.mkdir()
    documents = {"tasks": list(tasks), "db": SHOP, "split_tasks": splits or {"train": [], "test": []}}
    for name, document in documents.items():
        (place / f"{name}.json").write_text(json.dumps(document))
    return list(read_tau2_bench(tmp_path, "retail"))


def data(record: SourceRecord) -> dict[str, Any]:
    """The fields of a record that could be read."""
    assert record.data is not None, record.problem
    return record.data


def retail(folder: Path, tmp_path: Path) -> dict[str, Scenario]:
    """The published retail tasks after ingestion, by id."""
    source = Tau2Source(kind="tau2_bench", path=str(folder))
    ingest((source,), tmp_path / "s.parquet", tmp_path / "q.parquet", max_quarantined_fraction=0)
    return {scenario.id: scenario for scenario in read_scenarios(tmp_path / "s.parquet")}


@pytest.mark.parametrize(
    "reason",
    [
        "order #W1 is late",
        "order W2 is late",
        "my id is ann_1",
        "write to ANN@example.com",
        "I am Ann Ito in 11111",
    ],
)
def test_the_world_is_the_caller_with_all_orders_and_their_products(tmp_path: Path, reason: str) -> None:
    """A customer is found by an order, id, e-mail address, or name with postal code; Bob's records stay out."""
    world = data(records(tmp_path, task("0", reason))[0])["world"]
    assert set(world["users"]) == {"ann_1"}
    assert set(world["orders"]) == {"#W1", "#W2"}
    assert set(world["products"]) == {"100"}


def test_products_that_calls_mention_are_in_the_world(tmp_path: Path) -> None:
    """They are mentioned by their own id, or by that of a variant."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("get_product_details", {"product_id": "300"}),
        ("exchange", {"new_item_ids": ["401"]}),
    ]
    assert set(data(records(tmp_path, task("0", "hi", *calls))[0])["world"]["products"]) == {"300", "400"}


def test_the_world_names_the_whole_database(tmp_path: Path) -> None:
    """The digest is that of the whole db.json."""
    world = data(records(tmp_path, task("0", "hi"))[0])["world"]
    assert world["database_sha256"] == hashlib.sha256((tmp_path / "retail" / "db.json").read_bytes()).hexdigest()


def test_all_calls_and_the_facts_as_text_are_expected(tmp_path: Path) -> None:
    """Reading calls count too; a fact that is a number becomes its text."""
    calls = [("get_user", {"user_id": "ann_1"}), ("cancel", {"order_id": "#W1"})]
    expected = data(records(tmp_path, task("0", "hi", *calls, facts=(10, "polyester")))[0])["expected"]
    assert expected["calls"] == [{"name": name, "arguments": arguments} for name, arguments in calls]
    assert expected["facts"] == ["10", "polyester"]


def test_every_task_has_the_tools_of_all_tasks(tmp_path: Path) -> None:
    """The choice of the tool is left to the agent."""
    first, second = records(
        tmp_path, task("0", "hi", ("cancel", {"order_id": "#W1"})), task("1", "hi", ("find_it", {}))
    )
    assert [tool["name"] for tool in data(first)["tools"]] == ["cancel", "find_it"]
    assert data(first)["tools"] == data(second)["tools"]


def test_the_category_is_the_last_call_that_does_more_than_read(tmp_path: Path) -> None:
    """Looking up and calculating are reading."""
    acting = task("0", "hi", ("cancel", {}), ("return", {}), ("get_user", {}), ("calculate", {}))
    reading = task("1", "hi", ("find_user", {}))
    categories = [data(record)["metadata"]["category"] for record in records(tmp_path, acting, reading)]
    assert categories == ["return", "information"]


@pytest.mark.parametrize(("calls", "difficulty"), [(0, "easy"), (2, "easy"), (3, "medium"), (5, "medium"), (6, "hard")])
def test_more_expected_calls_are_harder(tmp_path: Path, calls: int, difficulty: str) -> None:
    """Up to two are easy, up to five medium."""
    (record,) = records(tmp_path, task("0", "hi", *[("get_user", {})] * calls))
    assert data(record)["metadata"]["difficulty"] == difficulty


def test_the_published_split_is_declared(tmp_path: Path) -> None:
    """Train is train, test is held out, the rest is left to the hash."""
    tasks = [task(name, "hi") for name in "abc"]
    tasks_by_id = records(tmp_path, *tasks, splits={"train": ["a"], "test": ["b"], "base": ["a", "b", "c"]})
    assert [data(record)["split"] for record in tasks_by_id] == ["train", "heldout", None]


def test_a_task_in_both_splits_is_an_error(tmp_path: Path) -> None:
    """A published split that leaks is not used."""
    with pytest.raises(DataError, match="task a is in both parts"):
        records(tmp_path, task("a", "hi"), splits={"train": ["a"], "test": ["a"]})


def test_an_invalid_task_is_a_problem(tmp_path: Path) -> None:
    """The tasks around it are read."""
    broken, good = records(tmp_path, {"id": "0"}, task("1", "hi"))
    assert (broken.line, broken.problem) == (1, "not a task: user_scenario: Field required")
    assert data(good)["id"] == "tau2-retail-1"


def test_all_published_retail_tasks_become_scenarios(published: Callable[[str], Path], tmp_path: Path) -> None:
    """114 tasks: 74 for training, 40 held out, none in quarantine, each with one customer in its world."""
    scenarios = retail(published("tau2_bench"), tmp_path).values()
    assert Counter(scenario.split for scenario in scenarios) == {"train": 74, "heldout": 40}
    assert {len(scenario.world["users"]) for scenario in scenarios} == {1}


def test_a_published_task_keeps_its_content(published: Callable[[str], Path], tmp_path: Path) -> None:
    """Task 0: Yusuf Rossi exchanges a keyboard and a thermostat after five calls."""
    scenario = retail(published("tau2_bench"), tmp_path)["tau2-retail-0"]
    assert scenario.goal.splitlines()[1:3] == [
        "Known: You are Yusuf Rossi in zip code 19122.",
        "Unknown: You do not remember your email address.",
    ]
    assert [call["name"] for call in scenario.expected.calls] == [
        "find_user_id_by_name_zip",
        "get_order_details",
        "get_product_details",
        "get_product_details",
        "exchange_delivered_order_items",
    ]
    assert scenario.metadata.category == "exchange_delivered_order_items"
    assert "#W2378156" in scenario.world["orders"]
    assert {"1656367028", "4896585277"} <= set(scenario.world["products"])


def test_published_mock_tasks_have_a_goal(published: Callable[[str], Path]) -> None:
    """In mock the instructions are one string; an initial state is kept with the world."""
    tasks_by_id = {data(record)["id"]: data(record) for record in read_tau2_bench(published("tau2_bench"), "mock")}
    assert len(tasks_by_id) == 10
    assert tasks_by_id["tau2-mock-update_task_1"]["goal"].startswith("Instructions: You have completed the task")
    state = tasks_by_id["tau2-mock-update_task_with_initialization_data"]["world"]["initial_state"]
    assert "task_2" in state["initialization_data"]["agent_data"]["tasks"]


def telecom(tmp_path: Path, *tasks: dict[str, Any]) -> list[SourceRecord]:
    """Records of a telecom domain with these tasks."""
    place = tmp_path / "telecom"
    place.mkdir()
    (place / "tasks_small.json").write_text(json.dumps(tasks))
    (place / "db.toml").write_text('[[lines]]\nline_id = "L1"\n')
    (place / "user_db.toml").write_text("[device]\nroaming_enabled = false\n")
    (place / "main_policy.md").write_text("Be kind.")
    (place / "tech_support_manual.md").write_text("Turn it off and on.")
    return list(read_tau2_bench(tmp_path, "telecom", "tasks_small.json"))


def test_the_users_calls_are_part_of_the_final_state(tmp_path: Path) -> None:
    """The agent's calls are expected calls; the user's own and the assertions belong to the state."""
    item = task("[data_issue]off[PERSONA:None]", "no data", ("refuel", {"gb": 2}), ("toggle_roaming", {}))
    item["evaluation_criteria"]["actions"][0]["requestor"] = "assistant"
    item["evaluation_criteria"]["actions"][1]["requestor"] = "user"
    assertion = {"env_type": "user", "func_name": "assert_speed", "arguments": {"expected": 200}}
    item["evaluation_criteria"]["env_assertions"] = [assertion]
    (record,) = telecom(tmp_path, item)
    expected = data(record)["expected"]
    assert expected["calls"] == [{"name": "refuel", "arguments": {"gb": 2}}]
    assert expected["state"] == {"user_calls": [{"name": "toggle_roaming", "arguments": {}}], "assertions": [assertion]}
    assert [tool["name"] for tool in data(record)["tools"]] == ["refuel"]
    assert data(record)["metadata"]["category"] == "data_issue"


def test_telecom_has_two_databases_in_toml(tmp_path: Path) -> None:
    """The network's is the world, the phone's is under `device`; both texts are the policy."""
    (record,) = telecom(tmp_path, task("0", "hi"))
    world = data(record)["world"]
    assert world["lines"] == [{"line_id": "L1"}]
    assert world["device"] == {"device": {"roaming_enabled": False}}
    assert data(record)["context"] == "Be kind.\n\nTurn it off and on."
    assert data(record)["domain"] == "technical_support"


def test_a_broken_database_is_an_error(tmp_path: Path) -> None:
    """The message names the file."""
    telecom(tmp_path)
    (tmp_path / "telecom" / "db.toml").write_text("[[lines")
    with pytest.raises(DataError, match=r"db\.toml is not a TOML document"):
        list(read_tau2_bench(tmp_path, "telecom", "tasks_small.json"))


def test_all_published_telecom_tasks_become_scenarios(published: Callable[[str], Path], tmp_path: Path) -> None:
    """20 tasks; 7 calls are the agent's, 20 the user's own; every one has assertions on the final state."""
    source = Tau2Source(
        kind="tau2_bench", path=str(published("tau2_bench")), domain="telecom", tasks="tasks_small.json"
    )
    counts = ingest((source,), tmp_path / "s.parquet", tmp_path / "q.parquet", max_quarantined_fraction=0)
    scenarios = list(read_scenarios(tmp_path / "s.parquet"))
    assert (counts.records, counts.scenarios) == (20, 20)
    assert sum(len(s.expected.calls) for s in scenarios) == 7
    assert sum(len(s.expected.state.get("user_calls", ())) for s in scenarios) == 20
    assert all(s.expected.state["assertions"] for s in scenarios)


def judged_by(item: dict[str, Any], **criteria: Any) -> dict[str, Any]:
    """The task with these criteria beside its own."""
    item["evaluation_criteria"].update(criteria)
    return item


def test_the_criteria_of_success_are_kept(tmp_path: Path) -> None:
    """Basis, assertions and documents; a task without a basis has the benchmark's, state and facts."""
    whole = judged_by(task("0", "hi"), nl_assertions=["Is brief."], reward_basis=["DB", "NL_ASSERTION"])
    whole["required_documents"] = ["doc_1"]
    first, second = (data(record)["expected"] for record in records(tmp_path, whole, task("1", "hi")))
    assert (first["assertions"], first["reward_basis"]) == (["Is brief."], ["DB", "NL_ASSERTION"])
    assert first["required_documents"] == ["doc_1"]
    assert (second["assertions"], second["reward_basis"]) == ([], ["DB", "COMMUNICATE"])


def test_arguments_that_are_compared_are_kept_with_the_call(tmp_path: Path) -> None:
    """Without a list all arguments are compared."""
    item = task("0", "hi", ("cancel", {"order_id": "#W1", "reason": "late"}), ("close", {}))
    item["evaluation_criteria"]["actions"][0]["compare_args"] = ["order_id"]
    calls = data(records(tmp_path, item)[0])["expected"]["calls"]
    assert calls == [
        {"name": "cancel", "arguments": {"order_id": "#W1", "reason": "late"}, "compare_args": ["order_id"]},
        {"name": "close", "arguments": {}},
    ]


def test_an_unknown_reward_basis_is_a_problem(tmp_path: Path) -> None:
    """An unknown part of success is not left out."""
    (record,) = records(tmp_path, judged_by(task("0", "hi"), reward_basis=["DB", "VIBES"]))
    assert record.problem is not None
    assert record.problem.startswith("not a task: evaluation_criteria.reward_basis.1: Input should be 'DB'")


def test_another_domain_of_the_same_layout_is_read(tmp_path: Path) -> None:
    """An airline in the publisher's folders: the caller with reservations and their flights, without the rest."""
    place = tmp_path / "data" / "tau2" / "domains" / "airline"
    place.mkdir(parents=True)
    flyers = {
        name: {**shopper(name.title(), "11111"), "reservations": [held]}
        for name, held in (("ann", "R1"), ("bob", "R2"))
    }
    database = {
        "users": flyers,
        "reservations": {
            "R1": {"user_id": "ann", "flights": [{"flight_number": "HAT001"}]},
            "R2": {"user_id": "bob", "flights": [{"flight_number": "HAT002"}]},
        },
        "flights": {"HAT001": {}, "HAT002": {}, "HAT003": {}},
    }
    documents = {"tasks": [task("0", "Move R1 to HAT003, please.")], "db": database, "split_tasks": {"test": ["0"]}}
    for name, document in documents.items():
        (place / f"{name}.json").write_text(json.dumps(document))
    (record,) = read_tau2_bench(tmp_path, "airline")
    world = data(record)["world"]
    assert (set(world["users"]), set(world["reservations"]), set(world["flights"])) == (
        {"ann"},
        {"R1"},
        {"HAT001", "HAT003"},
    )
    assert (data(record)["id"], data(record)["split"]) == ("tau2-airline-0", "heldout")


def test_a_file_of_tasks_under_another_name_is_named_in_the_source(tmp_path: Path) -> None:
    """Telecom has several; the error lists those that are there."""
    telecom(tmp_path, task("0", "hi"))
    with pytest.raises(DataError, match=r"telecom has no tasks\.json\. There is database\. Correct"):
        list(read_tau2_bench(tmp_path, "telecom"))
    (record,) = read_tau2_bench(tmp_path, "telecom", "tasks_small.json")
    assert record.data is not None


def test_a_missing_domain_is_named_with_the_existing_ones(tmp_path: Path) -> None:
    """The content hash raises it too."""
    telecom(tmp_path)
    source = Tau2Source(kind="tau2_bench", path=str(tmp_path), domain="airline")
    with pytest.raises(DataError, match=r"has no domain airline\. There is telecom\. Correct the source's path"):
        content_hash([source])


def test_a_shop_without_its_split_is_an_error(tmp_path: Path) -> None:
    """Held-out tasks of the benchmark would be trained on."""
    records(tmp_path, task("0", "hi"))
    (tmp_path / "retail" / "split_tasks.json").unlink()
    with pytest.raises(DataError, match=r"split_tasks\.json"):
        list(read_tau2_bench(tmp_path, "retail"))


def test_published_retail_tasks_keep_their_assertions(published: Callable[[str], Path], tmp_path: Path) -> None:
    """61 assertions in 40 tasks; 112 of 114 have assertions in their basis, 2 the database alone."""
    expected = [scenario.expected for scenario in retail(published("tau2_bench"), tmp_path).values()]
    assert (sum(len(e.assertions) for e in expected), sum(bool(e.assertions) for e in expected)) == (61, 40)
    assert Counter(e.reward_basis for e in expected) == {("DB", "NL_ASSERTION"): 112, ("DB",): 2}
    assert Counter(e.basis for e in expected) == {("DB", "NL_ASSERTION"): 40, ("DB",): 74}
