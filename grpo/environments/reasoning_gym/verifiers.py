"""Verifiers of reasoning-gym that a policy could exploit. Tasks with such a verifier are refused.

Some evaluate an answer as Python, with `eval` or with sympy's parser, which uses it. What a policy learns to write
would run in the process of the rollout, with its files and its secrets.

Others score one constant answer as right for nearly every question, e.g. NaN, because no difference from NaN is above a
tolerance. Training would find it: it is the easiest answer to learn.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections import defaultdict
from typing import Any

import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset

_EVALUATING = {"eval", "exec", "compile", "parse_expr", "sympify", "S"}
_START = "score_answer"
_CONSTANTS = ("nan", "0", "1", "-1", "inf", "True", "False", "yes", "no", "[]", "x")
_QUESTIONS = 16
_MISSES = 4
"""Questions that have this constant as their answer, or for which it is scored as wrong, so that it is no exploit."""


def evaluating_call(task: type[ProceduralDataset]) -> str | None:
    """Name of a function that evaluates text and that the task's verifier calls, or None if it calls none.

    Calls are followed by name through the functions of the modules that define the task and its bases.
    """
    for base in task.__mro__:
        if base.__module__.partition(".")[0] == ProceduralDataset.__module__.partition(".")[0]:
            name = _evaluating_call(base.__module__)
            if name is not None:
                return name
    return None


@functools.cache
def constant_answer(name: str) -> str | None:
    """An answer that the verifier of this task scores as right for over 3/4 of 16 questions that have another answer.

    None if no constant does.
    """
    task = reasoning_gym.create_dataset(name, seed=0, size=_QUESTIONS)
    misses = dict.fromkeys(_CONSTANTS, 0)
    for index in range(_QUESTIONS):
        entry = task[index]  # some take a second to make, so that most tasks end after a few
        for constant in misses:
            misses[constant] += str(entry["answer"]).strip() == constant or not _is_right(task, constant, entry)
        misses = {constant: count for constant, count in misses.items() if count < _MISSES}
        if not misses:
            return None
    return next(iter(misses))


def _is_right(task: ProceduralDataset, answer: str, entry: dict[str, Any]) -> bool:
    try:
        return float(task.score_answer(answer, entry)) >= 1
    except Exception:  # noqa: BLE001 - verifiers raise what parsing an answer raises
        return False


@functools.cache
def _evaluating_call(module: str) -> str | None:
    functions = defaultdict(list)
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module]))):
        if isinstance(node, ast.FunctionDef):
            functions[node.name].append(node)
    reached, left = set(), [_START]
    while left:
        name = left.pop()
        if name in reached:
            continue
        reached.add(name)
        if name in _EVALUATING and name not in functions:
            return name
        left.extend(_called(call) for function in functions[name] for call in ast.walk(function))
    return None


def _called(node: ast.AST) -> str:
    """Name of the function that a call calls. Empty for any other node and for a computed function."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
