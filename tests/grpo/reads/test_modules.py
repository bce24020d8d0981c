from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from grpo.identity import user_code
from grpo.identity.user_code import user_code_digests
from grpo.reads import modules
from grpo.reads.modules import find_module, import_root, is_installed, is_users, module_source
from tests.plugins import put_package


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on sys.path, and nothing remembered of an earlier one."""
    monkeypatch.syspath_prepend(tmp_path)
    user_code_digests.cache_clear()
    user_code._distributions.cache_clear()
    return tmp_path


def _put(folder: Path, **sources: str) -> None:
    """Write modules: `gym__utils__video` is gym/utils/video.py in packages."""
    for name, source in sources.items():
        path = folder / Path(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        for package in path.relative_to(folder).parents[:-1]:
            (folder / package / "__init__.py").touch()


def _fails(text: str) -> str:
    return f"open(__file__ + '.ran', 'w').close()\nraise {text}\n"


@pytest.mark.parametrize("error", ["RuntimeError('needs moviepy')", "SystemExit(0)", "KeyboardInterrupt()"])
def test_a_module_is_found_below_packages_that_fail_when_they_are_imported(folder: Path, error: str):
    """Nothing of theirs is run; so for a library that a reward imports, whose modules are read one by one."""
    _put(folder, gym__utils__video=_fails(error), gym_reward="import gym.utils.video\ndef score(): ...\n")
    for package in ("gym", "gym/utils"):
        (folder / package / "__init__.py").write_text(_fails(error))
    spec = find_module("gym.utils.video")
    assert spec is not None
    assert spec.origin == str(folder / "gym" / "utils" / "video.py")
    assert find_module("gym.utils.audio") is None
    assert find_module("gym.utils.video.codec") is None
    assert list(user_code_digests("gym_reward:score")) == [
        "module gym",
        "module gym.utils",
        "module gym.utils.video",
        "module gym_reward",
    ]
    assert [path for path in folder.rglob("*.ran")] == []


def test_namespace_packages_zip_files_and_built_in_modules_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A namespace of two folders, at any depth; a module in an archive has its bytes; `sys` has none."""
    other = folder / "other"
    monkeypatch.syspath_prepend(other)
    for place, name in ((folder, "one"), (other, "two")):
        (place / "spread" / "wide").mkdir(parents=True)
        (place / "spread" / "wide" / f"{name}.py").write_text(f"NAME = '{name}'")
    with zipfile.ZipFile(folder / "packed.zip", "w") as archive:
        archive.writestr("packed_words.py", "WORDS = ()")
    monkeypatch.syspath_prepend(folder / "packed.zip")
    sources = {}
    for name in ("spread.wide.one", "spread.wide.two", "packed_words", "sys", "spread"):
        spec = find_module(name)
        assert spec is not None
        sources[name] = module_source(spec)
    assert sources == {
        "spread.wide.one": b"NAME = 'one'",
        "spread.wide.two": b"NAME = 'two'",
        "packed_words": b"WORDS = ()",
        "sys": None,
        "spread": None,
    }


def test_a_finder_that_fails_is_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """An import hook of some other package."""

    class Broken:
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            raise AttributeError("half of it was removed")

    _put(folder, found_all_the_same="")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    assert find_module("found_all_the_same") is not None


@pytest.mark.parametrize(
    ("metadata", "installed"), [("shop-1.0.dist-info", True), ("shop.egg-info", False), ("", False)]
)
def test_a_library_in_a_folder_with_its_metadata_is_installed(folder: Path, metadata: str, installed: bool):
    """As `pip install --target` leaves it: its version stands for it. An editable install leaves the user's code."""
    put_package(folder)
    (folder / "shop-1.0.dist-info").rename(folder / (metadata or "notes"))
    (folder / metadata / "PKG-INFO").write_text("Name: shop\nVersion: 1.0\n")
    modules._distributed.cache_clear()
    _put(folder, uses_shop="import shop.words\ndef score(): ...\n")
    spec = find_module("shop.words")
    assert spec is not None
    assert is_installed(spec) is installed
    assert import_root(spec) == folder.resolve()
    code = user_code_digests("uses_shop:score")
    assert ("module shop.words" in code) is not installed
    assert (code.get("package shop") == "1.0") is installed


def test_a_source_that_is_not_valid_python_counts_by_its_bytes_where_it_may_never_be_imported(folder: Path):
    """A vendored library has a file for an older Python, in a `try`."""
    _put(folder, vendored__old="print 'hello'\n", new_reward="try:\n  import vendored.old\nexcept SyntaxError: pass\n")
    assert "module vendored.old" in user_code_digests("new_reward:score")


def test_whose_a_source_file_is(tmp_path: Path):
    """A folder of the user's; not Python, a package, this project or generated code."""
    assert is_users(str(tmp_path / "rewards.py"))
    others = (pytest.__file__, zipfile.__file__, modules.__file__, "<string>", "<frozen importlib._bootstrap>")
    assert not any(map(is_users, others))
