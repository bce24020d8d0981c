"""Verifiers of reasoning-gym that evaluate an answer as Python, with `eval` or with sympy's parser, which uses it.

A policy writes the answers. What it learns to write would run in the process of the rollout, with its files and its
secrets, so that tasks with such a verifier are refused.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections import defaultdict

from reasoning_gym.dataset import ProceduralDataset

_EVALUATING = {"eval", "exec", "compile", "parse_expr", "sympify", "S"}
_START = "score_answer"


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
