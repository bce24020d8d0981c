from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from pathlib import Path

import pytest

from grpo.errors import ConfigError
from grpo.identity import user_code
from grpo.identity.user_code import user_code_digests
from tests.plugins import POLITE, put_package


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The distribution `shop` on sys.path, not imported yet."""
    folder = put_package(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        monkeypatch.delitem(sys.modules, name)
    user_code_digests.cache_clear()
    user_code._distributions.cache_clear()
    return folder


def test_every_module_that_is_imported_and_the_distribution_are_named(package: Path):
    """`shop.rewards` imports `shop.words`; the standard library and this package are not the user's."""
    code = user_code_digests("shop.rewards:PolitenessReward")
    assert list(code) == ["module shop", "module shop.rewards", "module shop.words", "package shop"]
    assert code["module shop.rewards"] == hashlib.sha256(POLITE.encode()).hexdigest()
    assert code["package shop"] == "1.0"


@pytest.mark.parametrize("module", ["rewards", "words"])
def test_one_changed_character_changes_the_digest(package: Path, module: str):
    """In the module itself, and in one that it imports; a module that is not imported does not count."""
    before = dict(user_code_digests("shop.rewards:PolitenessReward"))
    (package / "server.py").write_text("PORT = 80\n")
    user_code_digests.cache_clear()
    assert user_code_digests("shop.rewards:PolitenessReward") == before
    with (package / f"{module}.py").open("a") as file:
        file.write("#")
    user_code_digests.cache_clear()
    after = user_code_digests("shop.rewards:PolitenessReward")
    assert [name for name in after if after[name] != before[name]] == [f"module shop.{module}"]


def test_imports_inside_functions_and_relative_ones_are_followed(package: Path):
    """`from . import words` in a function, `from ..shop.words import x`, and a module beside the package."""
    (package / "late.py").write_text("def rows():\n    from . import words\n    import beside\n")
    (package.parent / "beside.py").write_text("import shop.late\n")  # a circle
    assert {"module shop.late", "module shop.words", "module beside"} <= {*user_code_digests("shop.late:rows")}


def test_installed_packages_count_by_their_version(package: Path):
    """numpy is not read file by file: its version stands for it."""
    (package / "numbers_of.py").write_text("import numpy.linalg\n")
    code = user_code_digests("shop.numbers_of:rows")
    assert code["package numpy"] == importlib.metadata.version("numpy")
    assert not [name for name in code if name.startswith("module numpy")]


def test_a_module_that_is_not_there_is_an_error_that_names_it(package: Path):
    """Of a package that is there, and of none."""
    for reference in ("shop.missing:rows", "missing:rows"):
        with pytest.raises(ConfigError, match=f"{reference}: module .* was not found"):
            user_code_digests(reference)


def test_a_source_that_is_not_python_is_an_error_that_names_it(package: Path):
    """With the file."""
    (package / "broken.py").write_text("def rows(:\n")
    with pytest.raises(ConfigError, match=r"broken\.py is not valid Python"):
        user_code_digests("shop.broken:rows")


@pytest.mark.parametrize(
    ("top", "distributions"),
    [
        ("numpy", ("numpy",)),
        ("yaml", ("PyYAML",)),  # another name than its module
        ("six", ("six",)),  # a module, not a package
        ("no_such_package", ()),
    ],
)
def test_a_module_is_looked_up_in_the_files_of_the_distributions(top: str, distributions: tuple[str, ...]):
    """As `importlib.metadata.packages_distributions` finds them in a second."""
    assert user_code._distributions(top) == distributions
    assert sorted({*importlib.metadata.packages_distributions().get(top, ())}) == sorted(distributions)
