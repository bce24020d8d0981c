from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from grpo import user_code
from grpo.errors import ConfigError
from grpo.user_code import code_of
from tests.plugins import POLITE, put_package


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The distribution `shop` on sys.path, not imported yet."""
    folder = put_package(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        monkeypatch.delitem(sys.modules, name)
    code_of.cache_clear()
    user_code._distributions.cache_clear()
    return folder


def test_every_module_that_is_imported_and_the_distribution_are_named(package: Path):
    """`shop.rewards` imports `shop.words`; the standard library and this package are not the user's."""
    code = code_of("shop.rewards:PolitenessReward")
    assert list(code) == ["module shop", "module shop.rewards", "module shop.words", "package shop"]
    assert code["module shop.rewards"] == hashlib.sha256(POLITE.encode()).hexdigest()
    assert code["package shop"] == "1.0"


@pytest.mark.parametrize("module", ["rewards", "words"])
def test_one_changed_character_is_another_code(package: Path, module: str):
    """In the module itself, and in one that it imports; a module that is not imported does not count."""
    before = dict(code_of("shop.rewards:PolitenessReward"))
    (package / "server.py").write_text("PORT = 80\n")
    code_of.cache_clear()
    assert code_of("shop.rewards:PolitenessReward") == before
    with (package / f"{module}.py").open("a") as file:
        file.write("#")
    code_of.cache_clear()
    after = code_of("shop.rewards:PolitenessReward")
    assert [name for name in after if after[name] != before[name]] == [f"module shop.{module}"]


def test_imports_inside_functions_and_relative_ones_are_followed(package: Path):
    """`from . import words` in a function, `from ..shop.words import x`, and a module beside the package."""
    (package / "late.py").write_text("def rows():\n    from . import words\n    import beside\n")
    (package.parent / "beside.py").write_text("import shop.late\n")  # a circle
    assert {"module shop.late", "module shop.words", "module beside"} <= {*code_of("shop.late:rows")}


def test_installed_packages_count_by_their_version(package: Path):
    """numpy is not read file by file: its version stands for it."""
    (package / "numbers_of.py").write_text("import numpy.linalg\n")
    code = code_of("shop.numbers_of:rows")
    assert code["package numpy"] == sys.modules["numpy"].__version__
    assert not [name for name in code if name.startswith("module numpy")]


def test_a_module_that_is_not_there_is_an_error_that_names_it(package: Path):
    """Of a package that is there, and of none."""
    for reference in ("shop.missing:rows", "missing:rows"):
        with pytest.raises(ConfigError, match=f"{reference}: there is no module"):
            code_of(reference)


def test_a_source_that_is_not_python_is_an_error_that_names_it(package: Path):
    """With the file."""
    (package / "broken.py").write_text("def rows(:\n")
    with pytest.raises(ConfigError, match=r"broken\.py is not valid Python"):
        code_of("shop.broken:rows")
