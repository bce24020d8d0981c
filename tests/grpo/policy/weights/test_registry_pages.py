"""Searches of a real MLflow store whose results do not fit on one page."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow.entities import ViewType

from grpo.policy.weights import registry_pages
from grpo.policy.weights.registry_pages import all_models, all_pages, all_versions
from grpo.registry import Registry
from tests.grpo.registry.making import put_version

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Models a, b and c with 1, 2 and 2 versions, read two at a time."""
    monkeypatch.setattr(registry_pages, "PAGE", 2)
    registry = Registry(f"sqlite:///{tmp_path}/mlflow.db", artifact_root=f"file://{tmp_path}/artifacts")
    for model, keys in (("b", "pq"), ("a", "r"), ("c", "st")):
        for key in keys:
            put_version(registry, model, key, against="base")
    return registry


def test_all_pages_of_models_and_versions_are_read(registry: Registry):
    """3 models on two pages, and 5 versions on three; the newest version of a model comes first."""
    assert [model.name for model in all_models(registry.client)] == ["a", "b", "c"]
    found = [(version.name, int(version.version)) for version in all_versions(registry.client)]
    assert found == [("a", 1), ("b", 2), ("b", 1), ("c", 2), ("c", 1)]
    assert [int(version.version) for version in all_versions(registry.client, "name = 'c'")] == [2, 1]


def test_a_version_that_is_updated_while_pages_are_read_is_not_left_out(registry: Registry):
    """By the time of the last update, c/1 would move to the first page after that page was read."""
    versions = all_versions(registry.client)
    first = next(versions)
    registry.client.set_model_version_tag("c", "1", "note", "new")
    assert [version.name for version in (first, *versions)] == ["a", "b", "b", "c", "c"]


def test_the_registry_reads_all_pages(registry: Registry):
    """Its lists of versions, and the look-up of the version of a run."""
    assert [version.version for version in registry.versions("b")] == [1, 2]
    found = registry.find("c", "c-s")
    assert found is not None
    assert found.version == 1


def test_runs_are_read_in_pages_of_another_size(registry: Registry):
    """Three runs, one for each request."""
    experiment = registry.experiment("pages")
    runs = {registry.client.create_run(experiment).info.run_id for _ in range(3)}
    found = list(all_pages(registry.client.search_runs, [experiment], run_view_type=ViewType.ALL, page=1))
    assert {run.info.run_id for run in found} == runs
    assert len(found) == 3
