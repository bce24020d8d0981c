"""Calls in a reply that are written in Python, as LFM2's models do: `[f(x=1)]`."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from grpo.messages import Tool, ToolCall
from grpo.renderers.tool_formats import SHOWN, PartlyMalformed, ToolFormat
from grpo.strict_json import as_json

_CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "null": None}


class PythonCalls(ToolFormat):
    """Calls in Python with literal keyword arguments, parsed and never evaluated."""

    _beginning = r"[\w.\-]+\("

    def _calls(self, text: str, position: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        closing = self._closing_mark.search(text, position)
        if self._bare:  # a bare bracket ends a list as well
            closing = next(reversed(list(self._closing_mark.finditer(text, position))), None)
        end = closing.start() if closing else len(text.rstrip().removesuffix("]"))
        stop = end if closing else len(text)
        calls, rejected = list[ToolCall](), list[str]()
        nodes = _listed(text[position:end].strip())
        for node in nodes:
            try:
                calls.append(_python_call(node))
            except ValueError:
                if len(nodes) == 1:
                    raise
                rejected.append(ast.unparse(node))
        if rejected and calls:
            raise PartlyMalformed(calls, stop, rejected, rejected[0][:SHOWN])
        if rejected:
            raise ValueError("no call")
        return calls, stop


def _listed(text: str) -> list[ast.expr]:
    """Expressions that are separated by commas or lines."""
    try:
        listed = ast.parse(f"[{text}]", mode="eval").body
    except SyntaxError:
        statements = ast.parse(text).body
        if not all(isinstance(statement, ast.Expr) for statement in statements):
            raise
        return [statement.value for statement in statements if isinstance(statement, ast.Expr)]
    if not isinstance(listed, ast.List):  # as in [f()][g()], which is an index
        raise ValueError("not a list of calls")
    return listed.elts


def _python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call):
        raise ValueError("not a call")
    return ToolCall(name=ast.unparse(node.func), arguments=literal_arguments(node))


def literal_arguments(call: ast.Call) -> dict[str, Any]:
    """Arguments of a call by their names. Raises `ValueError` if one has no name, comes twice or is not a literal."""
    if call.args:
        raise ValueError("an argument has no name")
    arguments: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise ValueError(f"the argument {keyword.arg} comes twice" if keyword.arg else "an argument has no name")
        arguments[keyword.arg] = _literal(keyword.value)
    return arguments


def _literal(node: ast.expr) -> Any:
    """Value of a literal, in Python or JSON. Raises `ValueError` if a key of an object comes twice."""
    for inner in ast.walk(node):
        keys = [key.value for key in inner.keys if isinstance(key, ast.Constant)] if isinstance(inner, ast.Dict) else []
        if len({*keys}) < len(keys):
            raise ValueError("a key of an object comes twice")

    class Constants(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return ast.Constant(_CONSTANTS[name.id]) if name.id in _CONSTANTS else name

    try:
        value = ast.literal_eval(Constants().visit(node))
    except ValueError as error:
        raise ValueError(f"not a literal: {ast.unparse(node)[:SHOWN]}") from error
    return as_json(value)
