"""tau2-bench: tool tasks with a simulated user's goal, a database, and the calls a right answer makes.

    user_scenario                        → goal
    the calls of all tasks               → tools: their argument names and JSON types
    db.json, as far as the task goes     → world, with the digest of the whole file
    evaluation_criteria.actions          → expected.calls, reading ones included
    evaluation_criteria.communicate_info → expected.facts
    split_tasks.json                     → side
    policy.md                            → context

Not covered: what a tool does (the benchmark has it as code), assertions in natural language or code, and which
arguments of a call are compared.

https://github.com/sierra-research/tau2-bench, MIT
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from grpo.errors import DataError
from grpo.scenarios.readers.files import open_source, read_document
from grpo.scenarios.readers.record import Record
from grpo.scenarios.readers.tools import describe_tools
from grpo.scenarios.scenario import Difficulty, Side

_READING = ("calculate", "find_", "get_", "list_")
_SIDES: dict[str, Side] = {"train": "train", "test": "heldout"}
_WORD = re.compile(r"\w+")


class _Action(BaseModel):
    name: str
    arguments: dict[str, Any]


class _Criteria(BaseModel):
    actions: tuple[_Action, ...] | None = None
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
        return self.evaluation_criteria.actions or ()


def read_tau2_bench(folder: Path, domain: str) -> Iterator[Record]:
    """Read the tasks of `<domain>/`, one record a task, `line` being its number.

    Raises `DataError` where `tasks.json`, `db.json` or `split_tasks.json` is missing or broken.
    """
    place = folder / domain
    items = read_document(place / "tasks.json")
    database = read_document(place / "db.json")
    sides = _read_sides(place / "split_tasks.json")
    if not isinstance(items, list) or not isinstance(database, dict):
        raise DataError(f"{place}: tasks.json must hold a list and db.json an object; fetch the published files again")
    with open_source(place / "db.json") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    policy = place / "policy.md"
    context = policy.read_text(encoding="utf-8") if policy.exists() else ""
    tasks = [_parse(item) for item in items]
    tools = describe_tools(
        (action.name, action.arguments) for task in tasks if isinstance(task, _Task) for action in task.actions
    )
    for number, (item, task) in enumerate(zip(items, tasks, strict=True), start=1):
        raw = json.dumps(item)
        if isinstance(task, str):
            yield Record(source=str(place), line=number, data=None, raw=raw, problem=task)
            continue
        world = {**_touched(database, raw), "database_sha256": digest}
        if task.initial_state:
            world["initial_state"] = task.initial_state
        data = {
            "id": f"tau2-{domain}-{task.id}",
            "topic": domain,
            "domain": "customer_service",
            "goal": _goal(task.user_scenario),
            "context": context,
            "tools": tools,
            "world": world,
            "expected": {
                "calls": [action.model_dump() for action in task.actions],
                "facts": [str(fact) for fact in task.evaluation_criteria.communicate_info or ()],
            },
            "metadata": {
                "category": _category(task),
                "difficulty": _difficulty(len(task.actions)),
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
        problem = error.errors()[0]
        return f"not a task: {'.'.join(map(str, problem['loc']))}: {problem['msg']}"


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
    """The last call that does more than read; `information` where none does."""
    names = [action.name for action in task.actions if not action.name.startswith(_READING)]
    return names[-1] if names else "information"


def _difficulty(calls: int) -> Difficulty:
    """By the number of expected calls; thirds of retail."""
    return "easy" if calls <= 2 else "medium" if calls <= 5 else "hard"


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
