"""tau2-bench: tool tasks with a simulated user's goal, a database, and the expected calls.

    user_scenario                        → goal
    the agent's calls of all tasks       → tools: their argument names and JSON types
    database, the part for the task      → world, with the digest of the whole file
    evaluation_criteria.actions          → expected.calls, also calls that only read
                                           the user's calls on their own device → expected.state.user_calls
    evaluation_criteria.env_assertions   → expected.state.assertions
    evaluation_criteria.communicate_info → expected.facts
    evaluation_criteria.nl_assertions    → expected.assertions
    evaluation_criteria.reward_basis     → expected.reward_basis, default DB and COMMUNICATE as in the benchmark
    required_documents                   → expected.required_documents
    split_tasks.json                     → split
    policy                               → context

A domain is a folder with tasks, a database in JSON or TOML, sometimes a database of the user's own device, and policy
texts. Not covered: the tools' code (part of the benchmark), the documents of a knowledge base, and voice.

https://github.com/sierra-research/tau2-bench, MIT
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from grpo.contrib.datasets.parts import find_parts
from grpo.data_errors import first_validation_error
from grpo.errors import DataError
from grpo.scenario import Domain, SplitName, SuccessCriterion
from grpo.scenarios.readers.files.source_files import open_source, read_document
from grpo.scenarios.records import SourceRecord, difficulty_by_count
from grpo.scenarios.tool_schemas import infer_tool_schemas

_READING = ("calculate", "find_", "get_", "list_")
_PART_SPLITS: dict[str, SplitName] = {"train": "train", "test": "heldout"}
_WORD = re.compile(r"\w+")
_KIND = re.compile(r"\[(\w+)\]")
"""Prefix of a task's id in telecom."""


_DATABASES = ("db.json", "db.toml")
_DEVICES = ("user_db.json", "user_db.toml")
_POLICIES = ("policy.md", "main_policy.md", "tech_support_manual.md", "prompts/components/policy_header.md")
_SPLIT = "split_tasks.json"
_DOMAINS: dict[str, Domain] = {"telecom": "technical_support"}
_MUST_SPLIT = ("airline", "mock", "retail")
"""Domains that must have a split file, because without it held-out tasks would be trained on."""


class _Action(BaseModel):
    name: str
    arguments: dict[str, Any]
    requestor: str | None = None
    compare_args: tuple[str, ...] | None = None

    @property
    def call(self) -> dict[str, Any]:
        """The call without its requestor."""
        compared = {} if self.compare_args is None else {"compare_args": list(self.compare_args)}
        return {"name": self.name, "arguments": self.arguments, **compared}


class _Criteria(BaseModel):
    actions: tuple[_Action, ...] | None = None
    env_assertions: tuple[dict[str, Any], ...] | None = None
    communicate_info: tuple[Any, ...] | None = None
    nl_assertions: tuple[str, ...] | None = None
    reward_basis: tuple[SuccessCriterion, ...] = ("DB", "COMMUNICATE")


class _Instructions(BaseModel):
    reason_for_call: str | None = None
    known_info: str | None = None
    unknown_info: str | None = None
    task_instructions: str | None = None


class _User(BaseModel):
    persona: str | None = None
    instructions: str | _Instructions


class _Task(BaseModel):
    id: str
    user_scenario: _User
    initial_state: dict[str, Any] | None = None
    evaluation_criteria: _Criteria = _Criteria()
    required_documents: tuple[str, ...] | None = None

    @property
    def actions(self) -> tuple[_Action, ...]:
        """Actions of the agent."""
        return tuple(a for a in self.evaluation_criteria.actions or () if a.requestor != "user")

    @property
    def state(self) -> dict[str, Any]:
        """Calls of the user, and assertions on the final state."""
        by_user = [a.call for a in self.evaluation_criteria.actions or () if a.requestor == "user"]
        state = {"user_calls": by_user, "assertions": list(self.evaluation_criteria.env_assertions or ())}
        return {name: value for name, value in state.items() if value}

    @property
    def expected(self) -> dict[str, Any]:
        """Criteria of success."""
        criteria = self.evaluation_criteria
        return {
            "calls": [action.call for action in self.actions],
            "facts": [str(fact) for fact in criteria.communicate_info or ()],
            "state": self.state,
            "assertions": list(criteria.nl_assertions or ()),
            "required_documents": list(self.required_documents or ()),
            "reward_basis": list(criteria.reward_basis),
        }


def find_tau2(folder: Path, domain: str) -> Path:
    """Find the folder of a domain, in `folder` or in the publisher's layout.

    Raises `DataError`, which lists the domains that exist, if it is missing.
    """
    published = folder / "data" / "tau2" / "domains"
    root = published if published.is_dir() else folder
    if not (root / domain).is_dir():
        there = sorted(path.name for path in root.glob("*") if path.is_dir()) if root.is_dir() else []
        raise DataError(
            f"{root} has no domain {domain}. There is {', '.join(there) or 'none'}. Correct the source's path or domain"
        )
    return root / domain


def read_tau2_bench(folder: Path, domain: str, tasks_file: str = "tasks.json") -> Iterator[SourceRecord]:
    """Read the tasks of `<domain>/`, one record per task. `line` is the task's number.

    Raises `DataError` if the tasks, the database or the split are missing or broken.
    """
    place = find_tau2(folder, domain)
    (tasks_part, database_part) = find_parts(place, (tasks_file, "database"), {"database": _DATABASES})
    items = read_document(tasks_part.path)
    database = _read_database(database_part.path)
    splits = _read_splits(place / _SPLIT) if domain in _MUST_SPLIT or (place / _SPLIT).exists() else {}
    devices = [place / name for name in _DEVICES if (place / name).exists()]
    device = {"device": _read_database(devices[0])} if devices else {}
    if not isinstance(items, list):
        raise DataError(f"{tasks_part.path} must hold a list. Fetch the published files again")
    with open_source(database_part.path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    policies = [place / name for name in _POLICIES]
    context = "\n\n".join(path.read_text(encoding="utf-8") for path in policies if path.exists())
    tasks = [_parse(item) for item in items]
    tools = infer_tool_schemas(
        (action.name, action.arguments) for task in tasks if isinstance(task, _Task) for action in task.actions
    )
    for number, (item, task) in enumerate(zip(items, tasks, strict=True), start=1):
        raw = json.dumps(item)
        if isinstance(task, str):
            yield SourceRecord(source=str(place), line=number, data=None, raw=raw, problem=task)
            continue
        world = {**_relevant_part(database, raw), **device, "database_sha256": digest}
        if task.initial_state:
            world["initial_state"] = task.initial_state
        data = {
            "id": f"tau2-{domain}-{task.id}",
            "topic": domain,
            "domain": _DOMAINS.get(domain, "customer_service"),
            "goal": _goal(task.user_scenario),
            "context": context,
            "tools": tools,
            "world": world,
            "expected": task.expected,
            "metadata": {
                "category": _category(task),
                "difficulty": difficulty_by_count(len(task.evaluation_criteria.actions or ()), easy=2, medium=5),
                "source": "tau2-bench",
                "licence": "MIT",
            },
            "split": splits.get(task.id),
        }
        yield SourceRecord(source=str(place), line=number, data=data, raw=raw)


def _parse(item: Any) -> _Task | str:
    """The task, or the problem of its record."""
    try:
        return _Task.model_validate(item)
    except ValidationError as error:
        return f"not a task: {first_validation_error(error)}"


def _read_database(path: Path) -> dict[str, Any]:
    if path.suffix == ".toml":
        with open_source(path) as file:
            try:
                return tomllib.load(file)
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise DataError(f"{path} is not a TOML document: {error}. Fetch the published files again") from error
    document = read_document(path)
    if not isinstance(document, dict):
        raise DataError(f"{path} must hold an object. Fetch the published files again")
    return document


def _read_splits(path: Path) -> dict[str, SplitName]:
    document = read_document(path)
    splits: dict[str, SplitName] = {}
    for part, split in _PART_SPLITS.items():
        for task in document.get(part, ()):
            if splits.setdefault(task, split) != split:
                raise DataError(f"{path}: task {task} is in both parts. Take it out of one")
    return splits


def _goal(user: _User) -> str:
    """Instructions of the simulated user, one line per part."""
    instructions = user.instructions
    if isinstance(instructions, str):
        instructions = _Instructions(task_instructions=instructions)
    parts = {
        "Persona": user.persona,
        "Reason": instructions.reason_for_call,
        "Known": instructions.known_info,
        "Unknown": instructions.unknown_info,
        "Instructions": instructions.task_instructions,
    }
    return "\n".join(f"{name}: {text.strip()}" for name, text in parts.items() if text and text.strip())


def _category(task: _Task) -> str:
    """Kind in the task's id, or else its last call that does more than read, or else `information`."""
    named = _KIND.match(task.id)
    if named:
        return named[1]
    names = [action.name for action in task.actions if not action.name.startswith(_READING)]
    return names[-1] if names else "information"


def _relevant_part(database: dict[str, Any], task: str) -> dict[str, Any]:
    """The part of a shop's or an airline's database that a task needs. Any other database is used whole.

    A customer is kept, with all orders and reservations, if the task mentions the customer's id, e-mail address, name
    with postal code, or an order or reservation. A product is kept if it is in these orders, or if the task mentions it
    or one of its variants. A flight is kept if it is in these reservations, or if the task mentions it.
    """
    shop = {"users", "orders", "products"} <= set(database)
    if not shop and not {"users", "reservations", "flights"} <= set(database):
        return dict(database)
    text = task.casefold()
    words = set(_WORD.findall(text))
    table = "orders" if shop else "reservations"

    def mentioned(key: str, user: dict[str, Any]) -> bool:
        named = (user["name"]["first_name"], user["name"]["last_name"], user["address"]["zip"])
        return (
            key in words
            or user["email"].casefold() in text
            or all(name.casefold() in words for name in named)
            or any(item.lstrip("#").casefold() in words for item in user[table])
        )

    users = {key: user for key, user in database["users"].items() if mentioned(key, user)}
    held = {key: item for key, item in database[table].items() if item["user_id"] in users}
    if not shop:
        flown = {leg["flight_number"] for item in held.values() for leg in item["flights"]}
        flights = {
            key: flight for key, flight in database["flights"].items() if key in flown or key.casefold() in words
        }
        return {"users": users, "reservations": held, "flights": flights}
    bought = {item["product_id"] for order in held.values() for item in order["items"]}
    products = {
        key: product
        for key, product in database["products"].items()
        if key in bought or key in words or not words.isdisjoint(product["variants"])
    }
    return {"users": users, "orders": held, "products": products}
