"""Measures of a checkout, in the order of the table in docs/internals/house.md, with the bounds that tests keep."""

from __future__ import annotations

import ast
import os
import re
import statistics
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests import house

Function = ast.FunctionDef | ast.AsyncFunctionDef
_CIRCLES = """
import sys, grimp
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
graph = grimp.build_graph(*sys.argv[1:], cache_dir=None)
modules = sorted(graph.modules)
number = {module: index for index, module in enumerate(modules)}
edges = [(number[m], number[n]) for m in modules for n in graph.find_modules_directly_imported_by(m)]
shape = (len(modules), len(modules))
matrix = csr_matrix(([1] * len(edges), tuple(zip(*edges, strict=True))), shape=shape)
_, labels = connected_components(matrix, connection="strong")
print(*[module for module, label in zip(modules, labels, strict=True) if (labels == label).sum() > 1])
"""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number of a checkout, as the page shows it."""

    name: str
    value: str
    bound: str = ""
    """What tests/test_house.py asks for; empty for a measure that is only watched."""


def measures(root: Path) -> list[Measure]:
    """All of them, for the checkout in this folder."""
    modules = house.sources(root)
    return [*_sizes(root, modules), *_shapes(root, modules), *_words(root, modules), *_pages(root)]


def circles(root: Path) -> list[str]:
    """Modules that import each other, imports for type checkers included."""
    folders = [root, root / "tasks", root / "flows"]
    packages = [path.parent.name for folder in folders for path in sorted(folder.glob("grpo*/__init__.py"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-P", "-c", _CIRCLES, *packages]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.split()


def _sizes(root: Path, modules: list[house.Source]) -> list[Measure]:
    tests = house.sources(root, folders=("tests",))
    lines, in_tests = ([_lines(module) for module in group] for group in (modules, tests))
    functions = [node for module in modules for node in ast.walk(module.tree) if isinstance(node, Function)]
    lengths = sorted((node.end_lineno or node.lineno) - node.lineno + 1 for node in functions)
    folders = Counter(module.path.parent for module in modules if module.path.name != "__init__.py")
    largest, most = folders.most_common(1)[0]
    long = [path for path in lines if path > 300]
    return [
        Measure(name="modules and lines of the source", value=f"{len(lines):,} and {sum(lines):,}"),
        Measure(name="modules and lines of the tests", value=f"{len(in_tests):,} and {sum(in_tests):,}"),
        Measure(name="lines of tests per line of source", value=f"{sum(in_tests) / sum(lines):.2f}"),
        Measure(
            name="lines of a module: median and maximum",
            value=f"{statistics.median(lines):.0f} and {max(lines)}",
            bound=f"{house.LONGEST}",
        ),
        Measure(name="modules of more than 300 lines", value=f"{len(long)} ({len(long) / len(lines):.1%})"),
        Measure(name="most modules in one folder", value=f"{most} ({largest.relative_to(root)})"),
        Measure(
            name="lines of a function: median, 95 % and maximum",
            value=f"{statistics.median(lengths):.0f}, {lengths[int(0.95 * len(lengths))]} and {lengths[-1]}",
        ),
        _share("functions of more than 50 lines", sum(length > 50 for length in lengths), len(lengths)),
        _share("functions with 7 parameters or more", sum(_parameters(node) >= 7 for node in functions), len(lengths)),
    ]


def _shapes(root: Path, modules: list[house.Source]) -> list[Measure]:
    nodes = [node for module in modules for node in ast.walk(module.tree)]
    functions = [node for node in nodes if isinstance(node, Function)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    broad = [node for node in nodes if isinstance(node, ast.ExceptHandler) and "Exception" in _names(node.type)]
    settings = [
        sum(isinstance(part, ast.AnnAssign) and "ClassVar" not in ast.unparse(part.annotation) for part in node.body)
        for module in modules
        if module.path.is_relative_to(root / "grpo" / "config")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    ]
    by_source = [
        module.path
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        if any(name.endswith("Source") for name in _names(node.args[1]))
    ]
    documented = [sum(bool(ast.get_docstring(node)) for node in group) / len(group) for group in (functions, classes)]
    return [
        Measure(name="modules in import circles", value=f"{len(circles(root))}", bound="0"),
        Measure(name="public names at the top of modules", value=f"{sum(map(_public, modules)):,}"),
        Measure(
            name="classes and fields of settings in grpo/config",
            value=f"{sum(map(bool, settings))} and {sum(settings)}",
        ),
        Measure(name="functions and classes with a docstring", value=f"{documented[0]:.0%} and {documented[1]:.0%}"),
        Measure(name="handlers of `Exception`", value=f"{len(broad)}"),
        Measure(
            name="`isinstance` on the settings of a source, and modules with one",
            value=f"{len(by_source)} and {len(set(by_source))}",
        ),
    ]


def _words(root: Path, modules: list[house.Source]) -> list[Measure]:
    asked, total = house.questions(modules)
    rows = [
        Measure(
            name="docstrings that open with a question word",
            value=f"{len(asked) / total:.1%}",
            bound=f"{house.MOST_QUESTIONS:.0%}",
        )
    ]
    for name, pattern in house.WORDS.items():
        matches, lines = house.uses(modules, pattern)
        value = f"{10_000 * len(matches) / lines:.1f}"
        rows.append(Measure(name=f"{name}, per 10,000 lines", value=value, bound=f"{house.MOST[name]}"))
    people = house.read_by_people(modules, root)
    kinds = {
        "docstrings and comments": [text for module in modules for text in house.prose(module)],
        "messages": [text for module in people for text in house.messages(module.tree)],
    }
    for kind, texts in kinds.items():
        for name, rate in house.register(texts).items():
            bound = f"{house.MOST_DENSE[name]:g}" if name in house.MOST_DENSE else f"at least {house.LEAST_CONDITIONS}"
            rows.append(Measure(name=f"{name}, per 10,000 words of {kind}", value=f"{rate:.1f}", bound=bound))
    vague = sum(bool(house.variables(module.tree) & house.VAGUE) for module in modules)
    names = ", ".join(sorted(house.VAGUE))
    return [*rows, Measure(name=f"modules with a variable named {names}", value=f"{vague}", bound="0")]


def _pages(root: Path) -> list[Measure]:
    groups = {
        "pages for users": [path for path in sorted((root / "docs").glob("*.md")) if path.name != "README.md"],
        "pages on how it is made and measured": sorted((root / "docs" / "internals").glob("*.md")),
    }
    rows = [
        Measure(name=f"{name}, and their words", value=f"{len(paths)} and {sum(map(_count, paths)):,}")
        for name, paths in groups.items()
    ]
    return [*rows, *(Measure(name=f"words of {name}", value=f"{_count(root / name):,}") for name in _TOP)]


_TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")


def _count(page: Path) -> int:
    return len(page.read_text(encoding="utf-8").split())


def _lines(module: house.Source) -> int:
    return module.text.count("\n")


def _share(name: str, part: int, total: int) -> Measure:
    return Measure(name=name, value=f"{part} of {total:,} ({part / total:.1%})")


def _parameters(function: Function) -> int:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    bound = bool(positional) and re.fullmatch("self|cls", positional[0].arg) is not None
    return len([*positional, *arguments.kwonlyargs]) + bool(arguments.vararg) + bool(arguments.kwarg) - bound


def _names(node: ast.expr | None) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} if node else set()


def _public(module: house.Source) -> int:
    names: list[str] = []
    for node in module.tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.append(node.name)
            case ast.Assign():
                names += [target.id for target in node.targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.append(name)
    return sum(not name.startswith("_") for name in names)
