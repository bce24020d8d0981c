"""tau2-bench: tool tasks with a simulated user's goal, a database, and the calls a right answer makes.

    user_scenario                        → goal
    the agent's calls of all tasks       → tools: their argument names and JSON types
    database, as far as the task goes    → world, with the digest of the whole file
    evaluation_criteria.actions          → expected.calls, reading ones included;
                                           what the user does on a device of their own → expected.state.user_calls
    evaluation_criteria.env_assertions   → expected.state.assertions
    evaluation_criteria.communicate_info → expected.facts
    split_tasks.json, if there is one    → side
    policy                               → context

Retail and mock have JSON databases, telecom TOML ones, of the network and of the user's phone. Not covered: what a
tool does (the benchmark has it as code), assertions in natural language, and which arguments of a call are compared.

https://github.com/sierra-research/tau2-bench, MIT
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from grpo.errors import DataError
from grpo.scenarios.boundary import first_fault
from grpo.scenarios.readers.files import open_source, read_document
from grpo.scenarios.readers.record import Record
from grpo.scenarios.readers.shapes import grade
from grpo.scenarios.readers.tools import describe_tools
from grpo.scenarios.scenario import Domain, Side

_READING = ("calculate", "find_", "get_", "list_")
_SIDES: dict[str, Side] = {"train": "train", "test": "heldout"}
_WORD = re.compile(r"\w+")
_KIND = re.compile(r"\[(\w+)\]")
"""What a task's id begins with in telecom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """The files of a domain."""

    tasks: str = "tasks.json"
    database: str = "db.json"
    policies: tuple[str, ...] = ("policy.md",)
    device: str | None = None
    """The state of the user's own device."""
    split: str | None = "split_tasks.json"
    domain: Domain = "customer_service"


_FILES = {
    "retail": _Files(),
    "mock": _Files(device="user_db.json"),
    "telecom": _Files(
        tasks="tasks_small.json",
        database="db.toml",
        policies=("main_policy.md", "tech_support_manual.md"),
        device="user_db.toml",
        split=None,
        domain="technical_support",
    ),
}


class _Action(BaseModel):
    name: str
    arguments: dict[str, Any]
    requestor: str | None = None

    @property
    def call(self) -> dict[str, Any]:
        """What is called, without who calls it."""
        return {"name": self.name, "arguments": self.arguments}


class _Criteria(BaseModel):
    actions: tuple[_Action, ...] | None = None
    env_assertions: tuple[dict[str, Any], ...] | None = None
    communicate_info: tuple[Any, ...] | None = None


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

    @property
    def actions(self) -> tuple[_Action, ...]:
        """What the agent does."""
        return tuple(a for a in self.evaluation_criteria.actions or () if a.requestor != "user")

    @property
    def state(self) -> dict[str, Any]:
        """What the user does, and what must hold in the end."""
        by_user = [a.call for a in self.evaluation_criteria.actions or () if a.requestor == "user"]
        found = {"user_calls": by_user, "assertions": list(self.evaluation_criteria.env_assertions or ())}
        return {name: value for name, value in found.items() if value}


def read_tau2_bench(folder: Path, domain: str) -> Iterator[Record]:
    """Read the tasks of `<domain>/`, one record a task, `line` being its number.

    Raises `DataError` where the tasks, the database or the split are missing or broken.
    """
    place, files = folder / domain, _FILES[domain]
    items = read_document(place / files.tasks)
    database = _read_database(place / files.database)
    sides = _read_sides(place / files.split) if files.split else {}
    device = {"device": _read_database(place / files.device)} if files.device else {}
    if not isinstance(items, list):
        raise DataError(f"{place / files.tasks} must hold a list; fetch the published files again")
    with open_source(place / files.database) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    policies = [place / name for name in files.policies]
    context = "\n\n".join(path.read_text(encoding="utf-8") for path in policies if path.exists())
    tasks = [_parse(item) for item in items]
    tools = describe_tools(
        (action.name, action.arguments) for task in tasks if isinstance(task, _Task) for action in task.actions
    )
    for number, (item, task) in enumerate(zip(items, tasks, strict=True), start=1):
        raw = json.dumps(item)
        if isinstance(task, str):
            yield Record(source=str(place), line=number, data=None, raw=raw, problem=task)
            continue
        world = {**_touched(database, raw), **device, "database_sha256": digest}
        if task.initial_state:
            world["initial_state"] = task.initial_state
        data = {
            "id": f"tau2-{domain}-{task.id}",
            "topic": domain,
            "domain": files.domain,
            "goal": _goal(task.user_scenario),
            "context": context,
            "tools": tools,
            "world": world,
            "expected": {
                "calls": [action.call for action in task.actions],
                "facts": [str(fact) for fact in task.evaluation_criteria.communicate_info or ()],
                "state": task.state,
            },
            "metadata": {
                "category": _category(task),
                "difficulty": grade(len(task.evaluation_criteria.actions or ()), easy=2, medium=5),
                "source": "tau2-bench",
                "licence": "MIT",
            },
            "side": sides.get(task.id),
        }
        yield Record(source=str(place), line=number, data=data, raw=raw)


def _parse(item: Any) -> _Task | str:
    """The task, or what is wrong with it."""
    try:
        return _Task.model_validate(item)
    except ValidationError as error:
        return f"not a task: {first_fault(error)}"


def _read_database(path: Path) -> dict[str, Any]:
    if path.suffix == ".toml":
        with open_source(path) as file:
            try:
                return tomllib.load(file)
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise DataError(f"{path} is no TOML document: {error}; fetch the published files again") from error
    document = read_document(path)
    if not isinstance(document, dict):
        raise DataError(f"{path} must hold an object; fetch the published files again")
    return document


def _read_sides(path: Path) -> dict[str, Side]:
    document = read_document(path)
    sides: dict[str, Side] = {}
    for part, side in _SIDES.items():
        for task in document.get(part, ()):
            if sides.setdefault(task, side) != side:
                raise DataError(f"{path}: task {task} is in both parts; take it out of one")
    return sides


def _goal(user: _User) -> str:
    """What the simulated user is told, one line a part."""
    told = user.instructions
    if isinstance(told, str):
        told = _Instructions(task_instructions=told)
    parts = {
        "Persona": user.persona,
        "Reason": told.reason_for_call,
        "Known": told.known_info,
        "Unknown": told.unknown_info,
        "Instructions": told.task_instructions,
    }
    return "\n".join(f"{name}: {text.strip()}" for name, text in parts.items() if text and text.strip())


def _category(task: _Task) -> str:
    """What the id says; else the last call that does more than read, or `information` where none does."""
    named = _KIND.match(task.id)
    if named:
        return named[1]
    names = [action.name for action in task.actions if not action.name.startswith(_READING)]
    return names[-1] if names else "information"


def _touched(database: dict[str, Any], task: str) -> dict[str, Any]:
    """The part of a shop's database that a task is about; another database is taken whole.

    A customer is touched whose id, e-mail address, name with postal code, or one of whose orders the task mentions;
    with the customer come all their orders. A product is touched that these orders hold, or that the task
    mentions, itself or by a variant.
    """
    if not {"users", "orders", "products"} <= set(database):
        return dict(database)
    text = task.casefold()
    words = set(_WORD.findall(text))

    def mentioned(key: str, user: dict[str, Any]) -> bool:
        named = (user["name"]["first_name"], user["name"]["last_name"], user["address"]["zip"])
        return (
            key in words
            or user["email"].casefold() in text
            or all(name.casefold() in words for name in named)
            or any(order.lstrip("#").casefold() in words for order in user["orders"])
        )

    users = {key: user for key, user in database["users"].items() if mentioned(key, user)}
    orders = {key: order for key, order in database["orders"].items() if order["user_id"] in users}
    bought = {item["product_id"] for order in orders.values() for item in order["items"]}
    products = {
        key: product
        for key, product in database["products"].items()
        if key in bought or key in words or not words.isdisjoint(product["variants"])
    }
    return {"users": users, "orders": orders, "products": products}
