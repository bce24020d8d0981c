"""The path of a run in CONTRIBUTING.md, walked by a run, and the functions of the walks in docs/internals/house.md."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from grpo.algorithms.catalog import ALGORITHMS
from grpo.algorithms.losses import clipped_surrogate
from grpo.config.pipeline import PipelineConfig
from tests.doubles import changed
from tests.places import INTERNALS, ROOT

STAGE_CALL = (
    "tasks/grpo_tasks/execution/stage.py",
    "tasks/grpo_tasks/execution/executor.py",
    "tasks/grpo_tasks/execution/gpu_slots.py",
)
"""Modules of the stage call itself, which is the same for every stage."""


def _project_frames(frame: FrameType | None) -> list[tuple[str, str]]:
    """(module file, function) of the project's functions on the stack, outermost first."""
    frames = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ("flows", "tasks", "grpo"):
            frames.append((str(path.relative_to(ROOT)), frame.f_code.co_qualname))
        frame = frame.f_back
    return frames[::-1]


@pytest.mark.usefixtures("server")
@pytest.mark.filterwarnings("ignore")
def test_the_path_of_a_run_is_the_documented_one(desk_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """Each function from the flow to the policy loss, in call order; at most 12 calls after the flow."""
    from grpo_flows.train import train

    stack: list[tuple[str, str]] = []

    def recorded(*arguments: Any) -> Any:
        stack[:] = [*_project_frames(sys._getframe(1)), ("grpo/algorithms/losses.py", clipped_surrogate.__name__)]
        return clipped_surrogate(*arguments)

    algorithm = replace(ALGORITHMS["grpo"], objective=recorded)
    monkeypatch.setitem(ALGORITHMS, "grpo", algorithm)
    train(PipelineConfig.model_validate(changed(desk_config, name="path", training={"iterations": 1})))
    flow = next(index for index, (path, _) in enumerate(stack) if path == "flows/grpo_flows/train.py")
    calls = [f"{path} {name}" for path, name in stack[flow:] if path not in STAGE_CALL]
    documented = re.search(r"## The path of a run\n.*?```\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert documented is not None
    lines = [" ".join(line.split()[:2]) for line in documented[1].splitlines()]
    assert calls == lines
    assert len(calls) - 1 <= 12


def defined(file: str) -> set[str]:
    """Names at the top of a module, and `Class.method` for the methods."""
    names = set[str]()
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.ClassDef(name=name, body=body):
                methods = [part.name for part in body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
                names |= {name, *(f"{name}.{method}" for method in methods)}
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


def test_each_question_has_the_place_that_decides():
    """The named object is defined in the named file, at the top of the module."""
    table = re.findall(r"^\| [^|]+ \| `([^`]+\.py)` \| `(\w+)`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert len(table) == 12
    assert [f"{file} has no {name}" for file, name in table if name not in defined(file)] == []


def walks(page: Path) -> dict[str, list[tuple[str, str]]]:
    """Files and functions of each walk of a page, by the text between its heading and its list."""
    listed = re.compile(r"^#+ [^\n]+\n\n((?:(?!^#|^```).)*)^```\n(.*?)^```", re.MULTILINE | re.DOTALL)
    blocks = listed.findall(page.read_text(encoding="utf-8"))
    return {text: re.findall(r"^(\S+\.py)\s+(\S+)", block, re.MULTILINE) for text, block in blocks}


@pytest.mark.parametrize(("page", "number"), [(ROOT / "CONTRIBUTING.md", 1), (INTERNALS / "house.md", 5)])
def test_every_function_of_a_walk_is_where_its_line_says(page: Path, number: int):
    """In the file that the line names, as a function or as a method of the class."""
    hops = [hop for walk in walks(page).values() for hop in walk]
    assert len(walks(page)) == number
    assert [f"{file} has no {name}" for file, name in hops if name not in defined(file)] == []


def test_the_numbers_of_a_walk_are_those_of_its_list():
    """Below each heading of docs/internals/house.md, and in its table. The first walk goes on in CONTRIBUTING.md."""
    page, (path,) = INTERNALS / "house.md", walks(ROOT / "CONTRIBUTING.md").values()
    first, *others = walks(page)
    for text, hops in [(first, path), *((text, walks(page)[text]) for text in others)]:
        assert text.startswith(f"{len(hops)} functions in {len({file for file, _ in hops})} files")
    table = page.read_text(encoding="utf-8").partition("| walk |")[2].partition("\n\n")[0]
    now = [row.split("|")[3].strip() for row in table.splitlines()[2:]]
    assert [cell for cell, text in zip(now, walks(page), strict=True) if not text.startswith(cell.split(",")[0])] == []
