"""Ids of the tasksets of the package `verifiers`."""

from __future__ import annotations

import importlib.util


def taskset_reference(id: str) -> str:
    """`module:name` of a taskset by its id, as `verifiers` imports it.

    my-words → my_words:Taskset     owner/my-words@1.2 → my_words:Taskset

    A taskset that ships with `verifiers` comes first.
    """
    module = id.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_").lower()
    shipped = f"verifiers.v1.tasksets.{module}"
    try:
        ships = importlib.util.find_spec(shipped) is not None
    except ModuleNotFoundError:
        ships = False
    return f"{shipped if ships else module}:Taskset"
