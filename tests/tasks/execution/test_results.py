from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.scenarios import PythonSource
from grpo.errors import ArtifactError
from grpo.reads import recording
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage
from tests.doubles import put_file


class Weighed(StageResult):
    """A number, and the file that it was computed from."""

    weight: int
    text: Artifact


class Counted(StageResult):
    """A number of values."""

    values: int


calls: list[str] = []


@stage
def weigh(text: str, store: str) -> Weighed:
    """Keep a text, and count its letters."""
    calls.append(text)
    artifact = put_file(ArtifactStore(store), "text", ".txt", lambda path: path.write_text(text) and None)
    return Weighed(weight=len(text), text=artifact)


def names() -> Iterator[str]:
    """Read the file that the test names."""
    yield from PLACE[0].read_text().split()


PLACE: list[Path] = []


@stage
def count(source: PythonSource, store: str) -> Counted:
    """Count the values of a user's generator."""
    calls.append("count")
    return Counted(values=len(list(names())))


@pytest.fixture(autouse=True)
def _no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    calls.clear()
    monkeypatch.setattr(recording, "_modules", {})  # what functions of this module have read in other tests


def _stored(store: Path) -> Path:
    (path,) = (store / "results").iterdir()
    return path


def test_a_stage_is_computed_once(tmp_path: Path):
    """The same inputs are a hit, wherever the store lies; other inputs are not."""
    first = weigh.fn("abc", str(tmp_path))
    assert weigh.fn(text="abc", store=str(tmp_path)) == first
    assert weigh.find({"text": "abc", "store": str(tmp_path)}) == first
    assert calls == ["abc"]
    tmp_path.joinpath("results").rename(tmp_path / "moved")
    weigh.fn("abc", str(tmp_path))
    weigh.fn("abcd", str(tmp_path))
    assert calls == ["abc", "abc", "abcd"]


def test_a_changed_number_is_noticed_said_and_computed_again(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """3 letters are 3 again, and the file says so."""
    weigh.fn("abc", str(tmp_path))
    path = _stored(tmp_path)
    path.write_text(path.read_text().replace('"weight":3', '"weight":9'))
    assert weigh.find({"text": "abc", "store": str(tmp_path)}) is None
    with caplog.at_level(logging.WARNING):
        assert weigh.fn("abc", str(tmp_path)).weight == 3
    assert "weigh is computed again" in caplog.text
    assert str(path) in caplog.text
    assert calls == ["abc", "abc"]
    assert weigh.fn("abc", str(tmp_path)).weight == 3
    assert calls == ["abc", "abc"]


class _Planted:
    def __init__(self, place: Path) -> None:
        self._place = place

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (Path.touch, (self._place,))


def test_a_planted_result_of_another_serializer_is_refused_and_not_executed(tmp_path: Path):
    """Prefect's own format with a pickle in it, and bare pickle bytes: the stage is computed, the file not created."""
    import base64

    weigh.fn("abc", str(tmp_path))
    path, executed = _stored(tmp_path), tmp_path / "executed"
    planted = pickle.dumps(_Planted(executed))
    record = {"metadata": {"serializer": {"type": "pickle"}}, "result": base64.b64encode(planted).decode()}
    for content in (json.dumps(record).encode(), planted):
        path.write_bytes(content)
        assert weigh.fn("abc", str(tmp_path)).weight == 3
        assert not executed.exists()
    assert calls == ["abc"] * 3


def test_a_missing_artifact_is_made_again(tmp_path: Path):
    """A hit whose file is gone is not a hit."""
    first = weigh.fn("abc", str(tmp_path))
    Path(first.text.uri).unlink()
    assert weigh.fn("abc", str(tmp_path)).text == first.text
    assert calls == ["abc"] * 2
    assert Path(first.text.uri).read_text(encoding="utf-8") == "abc"


def test_lines_that_a_generator_reads_are_part_of_its_result(tmp_path: Path):
    """Twenty new lines in the file: computed again, and then a hit."""
    PLACE[:] = [tmp_path / "names.txt"]
    PLACE[0].write_text("a b c")
    source = PythonSource(kind="python", object=f"{__name__}:names")
    store = str(tmp_path / "store")
    assert count.fn(source, store).values == 3
    assert str(PLACE[0]) in count.fn(source, store).reads
    PLACE[0].write_text("a b c" + "\nd" * 20)
    assert count.fn(source, store).values == 23
    assert count.fn(source, store).values == 23
    assert calls == ["count"] * 2


def test_a_declared_file_is_part_of_the_identity(tmp_path: Path):
    """One that Python does not see being opened; one that is not there is an error that names it."""
    PLACE[:] = [tmp_path / "names.txt"]
    PLACE[0].write_text("a b c")
    declared = tmp_path / "declared.parquet"
    source = PythonSource(kind="python", object=f"{__name__}:names", reads=(str(declared),))
    store = str(tmp_path / "store")
    with pytest.raises(Exception, match=r"declared\.parquet, which python names, cannot be read"):
        count.fn(source, store)
    for content in ("1", "2", "2"):
        declared.write_text(content)
        count.fn(source, store)
    assert calls == ["count"] * 2


def test_a_result_of_another_type_is_refused(tmp_path: Path):
    """A document with a sound digest whose fields are not those of the stage's result."""
    from grpo_tasks.execution.results import read_result, write_result

    store = ArtifactStore(str(tmp_path))
    write_result(store, "weigh-1", StageResult(compute_s=1.0))
    with pytest.raises(ArtifactError, match=r"weigh-1\.json cannot be read as Weighed, weight: Field required"):
        read_result(store, "weigh-1", Weighed)
