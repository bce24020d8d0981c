"""Questions of the Berkeley Function Calling Leaderboard (BFCL): turns, each a list of messages, and functions.

    {"id": "simple_0", "question": [[{"role": "user", "content": "Where is order 7?"}]], "function": [
        {"name": "look_up", "description": "Look up.", "parameters": {"type": "dict", "properties": {…}}}]}

The right calls are in a file of the same name in the folder `possible_answer`, and may have several right values for
one argument. They are not read. Tasks with services (`involved_classes`) are read by the kind `bfcl_multi_turn`.

https://github.com/ShishirPatil/gorilla
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo.data_errors import excerpt

_ANSWERS = "record: the right calls, which are in another file of the leaderboard"
_UNKNOWN_REPLY = {"role": "assistant", "content": "", "weight": 0}
"""Reply between two turns, which are two turns of the user."""
_QUESTION, _FUNCTIONS, _SERVICES = "question", "function", "involved_classes"
_RESULT = {"id", "result", "input_token_count", "output_token_count", "latency"}


def is_bfcl(data: Mapping[str, Any]) -> bool:
    """True for a question of the leaderboard."""
    turns = data.get(_QUESTION)
    is_task = bool({_FUNCTIONS, _SERVICES} & {*data})
    return is_task and isinstance(turns, list) and bool(turns) and all(map(_is_turn, turns))


def _is_turn(turn: Any) -> bool:
    return isinstance(turn, list) and all(isinstance(message, Mapping) and "role" in message for message in turn)


def read_bfcl(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The messages of all turns, and the functions as tools. Raises `ValueError` if the task needs services."""
    if _SERVICES in data:
        services = data[_SERVICES] if isinstance(data[_SERVICES], list) else [data[_SERVICES]]
        raise ValueError(
            f"the task runs in services: {excerpt(', '.join(map(str, services)), 80)}. Read multi-turn tasks with "
            "kind: bfcl_multi_turn and the folder of the data set as path. Tasks of other services cannot be read"
        )
    messages = [message for turn in data[_QUESTION] for message in (*turn, _UNKNOWN_REPLY)][:-1]
    kept = {"id": data["id"]} if data.get("id") else {}
    return {**kept, "messages": messages, "tools": data[_FUNCTIONS]}, [_ANSWERS]


def is_bfcl_answer(data: Mapping[str, Any]) -> bool:
    """True for an answer to a question of the leaderboard, or for a model's result, without the question."""
    return {*data} == {"id", "ground_truth"} or {*_RESULT} <= {*data}


def refuse_bfcl_answer(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Raise `ValueError`, because the questions are in another file."""
    raise ValueError(
        f"the record has an answer ({', '.join(data)}) and no question, as files of the Berkeley Function Calling "
        "Leaderboard have. Read the file with the questions instead"
    )
