"""Stores that were moved to another address: `stores.json` of the home.

    {"/srv/runs/artifacts": "s3://grpo/artifacts"}

Registered versions and pending plans name the store that an artifact was written to. After a move, the artifact is
found by its digest in the new store.
"""

from __future__ import annotations

import json
from pathlib import Path

from grpo.storage.files import read_json, write_atomically
from grpo.storage.home import home


def present_address(store: str) -> str:
    """Address of the store that has the content of `store` now, which is `store` itself if it was not moved."""
    moves, passed = _moves(), {store}
    while (address := moves.get(store)) is not None and address not in passed:
        store = address
        passed.add(store)
    return store


def note_move(source: str, target: str) -> None:
    """Record that the content of a store is in another one now.

    If the target was moved away before, that record is removed, so that a store can be moved back.
    """
    moves = {before: after for before, after in _moves().items() if before != target}
    write_atomically(_record(), json.dumps({**moves, source: target}, indent=1))


def _moves() -> dict[str, str]:
    return read_json(_record(), dict)


def _record() -> Path:
    return home() / "stores.json"
