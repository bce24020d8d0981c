"""Texts of the sources and their words: names, docstrings, comments and messages, with the bounds on them.

`python -m tests.house` writes the table of docs/internals/house.md.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.places import ROOT

LONGEST, LONGEST_TASK = 400, 90
"""Lines of a module, and of a task."""
MOST_QUESTIONS = 0.03
"""Share of the docstrings that open with a question word."""
MOST = {"say, tell, speak": 20, "nobody, somebody, whoever": 2, "is no": 2}
"""Uses in 10,000 lines of code, docstrings and messages."""
MOST_DENSE = {"those of, that of": 0.8, "whose": 8.0, "beside, anew, meanwhile, so many": 0.2, "semicolons": 114.0}
"""Uses in 10,000 words: at most twice as many as in other projects."""
LEAST_CONDITIONS = 60
"""Conditions and reasons in 10,000 words."""
FOLDERS = ("grpo", "tasks", "flows")
OPENINGS = re.compile(
    r"(what|who|how|where|whether|which|when|is|are|has|have|does|do|can|may|was|did)\b", re.IGNORECASE
)
WORDS = {
    "say, tell, speak": r"\b(say|says|said|saying|tell|tells|told|telling|speak|speaks|spoke|spoken|speaking)\b",
    "nobody, somebody, whoever": r"\b([Nn]obody|[Ss]omebody|[Ww]hoever)\b",
    "is no": r"(?<![Tt]here )\b([Ii]s|[Aa]re) no\b(?! longer)",
}
"""Words that plain technical prose does without."""
REGISTER = {
    "those of, that of": r"\b(those|that) of\b",
    "whose": r"\bwhose\b",
    "beside, anew, meanwhile, so many": r"\b(beside|anew|meanwhile|so many)\b",
    "semicolons": r";",
    "if, when, because, instead of, e.g.": r"\b(if|when|because|instead of|e\.g\.)",
}
"""Words by which prose is dense, but for the last, which are its conditions and reasons."""
SHORTEST = 4
"""Words of a string that counts as a message; shorter ones are names, units and headings."""
MODEL_TEXTS = (
    "grpo/agents/domain.py",
    "grpo/agents/extractive_summary.py",
    "grpo/agents/strategies.py",
    "grpo/agents/tools.py",
    "grpo/environments/presets.py",
    "grpo/environments/replay.py",
    "grpo/environments/support_desk",
    "grpo/environments/tool_calling.py",
    "grpo/environments/users/simulated_user.py",
    "grpo/environments/users/user_model.py",
    "grpo/contrib/worlds",
    "grpo/renderers",
    "grpo/rewards/hacking/probes.py",
    "grpo/rewards/judge",
    "grpo/rewards/learned/hazards.py",
    "grpo/rewards/text",
)
"""Folders and modules with texts that a model reads or writes: prompts, tools, templates, word lists of rewards."""
_CODE = re.compile(r"\{%|\(\?|\\|</|&#|\b(SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA|FROM)\b")
"""Marks of a string that is a template, a pattern, HTML or SQL."""
VAGUE = {"found", "told", "one", "said"}
"""Names that leave open what a variable holds."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A module."""

    path: Path
    text: str

    @property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text)


def sources(root: Path = ROOT, folders: tuple[str, ...] = FOLDERS) -> list[Source]:
    """Modules below these folders."""
    paths = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    return [Source(path=path, text=path.read_text(encoding="utf-8")) for path in paths]


def _blocks(tree: ast.AST) -> Iterator[ast.AST]:
    """A tree and what holds statements in it, for example classes, functions and the cases of a `match`."""
    yield tree
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, name, ()):
            yield from _blocks(node)


def docstrings(tree: ast.AST) -> list[str]:
    """Docstrings of modules, classes and functions, and those under fields."""
    texts = []
    for node in _blocks(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            texts.append(ast.get_docstring(node) or "")
            for field, below in pairwise(node.body):
                if isinstance(field, ast.Assign | ast.AnnAssign) and isinstance(below, ast.Expr):
                    texts.append(str(getattr(below.value, "value", "")))
    return [text for text in texts if text]


def comments(text: str) -> list[str]:
    """Comments of a source."""
    return [
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT
    ]


def prose(module: Source) -> list[str]:
    """Docstrings and comments of a source."""
    return [*docstrings(module.tree), *comments(module.text)]


def messages(tree: ast.AST) -> list[str]:
    """Strings of at least `SHORTEST` words that a person reads, for example errors, log lines and the help of options.

    These are all string constants but docstrings and code, with `{}` for the values of f-strings.
    """
    texts: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.JoinedStr):
            texts.append("".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
        for child in ast.iter_child_nodes(node):
            if not (isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)):
                visit(child)

    visit(tree)
    return [text for text in texts if len(text.split()) >= SHORTEST and not _CODE.search(text)]


def read_by_people(modules: list[Source], root: Path = ROOT) -> list[Source]:
    """The modules without those of `MODEL_TEXTS`."""
    texts = [root / path for path in MODEL_TEXTS]
    return [module for module in modules if not any(module.path.is_relative_to(path) for path in texts)]


def register(texts: Iterable[str]) -> dict[str, float]:
    """Uses of the words of `REGISTER` in 10,000 words."""
    prose = "\n".join(texts)
    words = len(prose.split())
    return {name: 1e4 * len(re.findall(word, prose, re.IGNORECASE)) / words for name, word in REGISTER.items()}


def questions(modules: list[Source]) -> tuple[list[str], int]:
    """Docstrings that begin as a question, and the number of all."""
    texts = [text for module in modules for text in docstrings(module.tree)]
    return [text.splitlines()[0] for text in texts if OPENINGS.match(text)], len(texts)


def uses(modules: list[Source], pattern: str) -> tuple[list[str], int]:
    """Matches of a pattern, with their lines, and the number of all lines; names count by their parts."""
    lines = [line for module in modules for line in module.text.splitlines()]
    return [line.strip() for line in lines for _ in re.finditer(pattern, line.replace("_", " "))], len(lines)


def variables(tree: ast.AST) -> set[str]:
    """Names of variables and parameters, those of comprehensions left out."""
    comprehensions = (node for node in ast.walk(tree) if isinstance(node, ast.comprehension))
    inside = {id(name) for node in comprehensions for name in ast.walk(node.target)}
    stored = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    parameters = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return parameters | {name.id for name in stored if id(name) not in inside}


def waiting_loops(tree: ast.AST) -> list[str]:
    """Attributes of its object over which a coroutine loops while it waits. Another may change them in that time.

    A loop over a copy is not meant, e.g. `for worker in tuple(self.workers)`.
    """
    loops = []
    for coroutine in (node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)):
        for node in ast.walk(coroutine):
            if isinstance(node, ast.For):
                loops += [(node.iter, node.body)]
            elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
                loops += [(generator.iter, [node]) for generator in node.generators]
    waits = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield)
    return [
        ast.unparse(over)
        for over, body in loops
        if any(isinstance(inner, waits) for node in body for inner in ast.walk(node)) and _is_own(over)
    ]


def _is_own(over: ast.expr) -> bool:
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute):
        return over.func.attr in ("keys", "values", "items") and _is_own(over.func.value)
    return isinstance(over, ast.Attribute) and isinstance(over.value, ast.Name) and over.value.id == "self"
