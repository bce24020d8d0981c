from __future__ import annotations

from pathlib import Path

import pytest

from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.registry import Registry
from grpo.registry.lineage import trace_lineage
from tests.grpo.registry.making import ANNA, make_provenance
from tests.grpo.registry.test_promotions import Dying, Killed

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


def _generation(
    registry: Registry, policy: TransformersPolicy, model: str, *, start: str, trained: str, against: str, merged: str
) -> None:
    """A version that was trained from `start` on, and serves."""
    folder = "models/base" if start == "base" else "store/checkpoint"
    made = make_provenance(
        policies=(start, trained), champion=against, config={"policy": {"model": folder}, "scenarios": {}}
    )
    tags = {"run_key": f"{model}-{trained}", "policy": trained, "verdict": "promote", "checkpoint_sha256": trained}
    tags |= {"checkpoint_uri": "store/x", "champion_sha256": against} | ({"merged": merged} if merged else {})
    run_id = registry.open_run("tests", "run", run_key=tags["run_key"], params={})
    version = registry.register(model, run_id, policy, tags=tags, provenance=made)
    registry.promotions(model).promote(version.version, reason="gates", by=ANNA)


def test_a_version_is_traced_to_the_base_model(registry: Registry, policy: TransformersPolicy):
    """Version 2 was trained from the policy of version 1, which was trained from the base model."""
    _generation(registry, policy, "traced", start="base", trained="p1", against="base", merged="")
    _generation(registry, policy, "traced", start="p1", trained="p2", against="p1", merged="")
    result = trace_lineage(registry, registry.resolve("models:/traced@champion"))
    assert [(one.policy, one.version, one.model) for one in result.parents] == [
        ("p1", 1, "store/checkpoint"),
        ("base", None, "models/base"),
    ]
    assert (result.version, result.evaluated_against, result.aliases) == (2, 1, ["candidate", "champion"])
    assert [one.champion for one in result.history] == [1, 2]


def test_a_version_is_traced_through_merged_adapters(registry: Registry, policy: TransformersPolicy):
    """Version 2 starts from version 1 with its adapters merged in, m1; it was judged against the adapted p1."""
    _generation(registry, policy, "adapted", start="base", trained="p1", against="base", merged="m1")
    _generation(registry, policy, "adapted", start="m1", trained="p2", against="p1", merged="m2")
    result = trace_lineage(registry, registry.resolve("models:/adapted@champion"))
    assert [(one.policy, one.version) for one in result.parents] == [("m1", 1), ("base", None)]
    assert result.evaluated_against == 1


def test_an_interrupted_promotion_is_in_effect_and_its_alias_is_shown_as_left_behind(
    registry: Registry, policy: TransformersPolicy
):
    """Its process was killed before the alias moved: version 2 is champion, and reading changes nothing."""
    _generation(registry, policy, "cut-off", start="base", trained="p1", against="base", merged="")
    tags = {"run_key": "cut-off", "policy": "p2", "verdict": "promote", "champion_sha256": "p1"}
    run_id = registry.open_run("tests", "run", run_key="cut-off", params={})
    version = registry.register("cut-off", run_id, policy, tags=tags, provenance=make_provenance())
    client = Dying(registry.client, at=5, after=True)  # the record is written, the alias has not moved
    with pytest.raises(Killed):
        Registry(registry.tracking_uri, client=client).promotions("cut-off").promote(2, reason="gates", by=ANNA)  # type: ignore[arg-type]
    for _ in range(2):
        lineage = trace_lineage(registry, version)
        assert (lineage.aliases, [change.champion for change in lineage.history]) == (["candidate"], [1, 2])
        assert lineage.moved is not None
        assert "Version 2 was promoted" in lineage.moved


def test_differences_are_ordered_by_likely_cause():
    """Code before packages before data before the machine."""
    then = make_provenance()
    now = make_provenance(code="new", packages={"torch": "2.14.0"}, scenarios="x", machine={"threads": "8"})
    result = then.differences(now)
    assert list(result) == ["code", "package torch", "scenarios", "processor", "threads"]
    assert result["package torch"] == ("2.13.0", "2.14.0")
    assert then.differences(then) == {}
