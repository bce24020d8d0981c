"""Every name of docs/commands.md exists, in the notebook's config and in the pipeline's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module

import pytest
from pydantic import BaseModel, ValidationError

import grpo
from grpo.config.pipeline import PipelineConfig
from grpo.notebook.config import OTHER_NAMES, TrainingConfig
from tests.places import ROOT

TEXT = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8").partition("\n## Names\n")[2]


def table(number: int) -> list[list[list[str]]]:
    """Quoted names of each cell of a table, without its head."""
    rows = re.split(r"\n\|[-|]+\|\n", TEXT)[number + 1].split("\n\n")[0].splitlines()
    return [[re.findall(r"`([^`]+)`", cell) for cell in row.strip("|").split("|")] for row in rows]


def in_the_pipeline(path: str) -> bool:
    section, field = path.split(".")
    settings = PipelineConfig.model_fields[section].annotation
    assert isinstance(settings, type)
    assert issubclass(settings, BaseModel)
    return field in settings.model_fields


def test_the_table_of_settings_is_the_one_that_is_read():
    """Each row's name with the fields that it sets, in the table's order."""
    assert [(row[0][0], tuple(row[1])) for row in table(0)] == list(OTHER_NAMES.items())


@pytest.mark.parametrize("row", [*table(0), *table(1)], ids=lambda row: row[0][0])
def test_a_setting_has_the_same_name_in_notebook_and_pipeline(row: list[list[str]]):
    """The path in a config ends with the notebook's field, and both exist."""
    assert set(row[1]) <= TrainingConfig.model_fields.keys()
    assert [path.partition(".")[2] for path in row[2]] == row[1]
    assert all(in_the_pipeline(path) for path in row[2])


@pytest.mark.parametrize("name", [name for row in table(1) for name in row[0]])
def test_a_refused_name_is_an_error(name: str):
    """It is not a default that stays as it is."""
    with pytest.raises(ValidationError, match=name):
        TrainingConfig.model_validate({name: 1})


@pytest.mark.parametrize("path", [name for row in table(2) for name in row[1]])
def test_a_name_of_asynchronous_training_is_a_setting(path: str):
    """It is a path in a config."""
    assert in_the_pipeline(path)


@pytest.mark.parametrize("name", [name for row in table(3) for name in row[1]])
def test_a_class_or_function_can_be_imported(name: str):
    """From the module that the row names."""
    module, _, attribute = name.rpartition(".")
    assert hasattr(import_module(module), attribute)


def code() -> Iterator[tuple[str, ast.Module]]:
    """Python that newcomers copy: the documents' blocks, the examples and the project of `grpo init`."""
    for page in ("own", "guide", "troubleshooting", "scenarios", "logs"):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)):
            yield f"{page} {number}", compile(block, page, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for path in [*(ROOT / "docs" / "examples").glob("*.py"), *(ROOT / "data" / "project").glob("*.py")]:
        yield path.name, ast.parse(path.read_text(encoding="utf-8"))


def types_used(tree: ast.Module) -> set[str]:
    """Names of base classes and annotations."""
    places: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            places += node.bases
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            places += [node.returns] if node.returns else []
            places += [argument.annotation for argument in node.args.args if argument.annotation]
    return {name.id for place in places for name in ast.walk(place) if isinstance(name, ast.Name)}


CODE = dict(code())


@pytest.mark.parametrize("tree", CODE.values(), ids=CODE)
def test_what_is_subclassed_or_annotated_with_comes_from_the_top(tree: ast.Module):
    """Nothing of it is imported from a module further down."""
    below = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grpo.")
        for alias in node.names
    }
    assert below & types_used(tree) == set()


def test_every_public_name_is_imported_for_type_checkers_too():
    """The imports that mypy sees and the table that is read at run time have the same names, from the same modules."""
    tree = ast.parse((ROOT / "grpo" / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    shown = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert shown == grpo._HOME
    for name in grpo.__all__:
        assert getattr(grpo, name) is getattr(import_module(grpo._HOME[name]), name)


def test_the_version_is_that_of_the_package():
    """The one of pyproject.toml, which is installed."""
    assert f'version = "{grpo.__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
