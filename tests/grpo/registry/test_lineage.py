from __future__ import annotations

from pathlib import Path

import pytest

from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.registry import Registry
from grpo.registry.lineage import trace
from tests.grpo.registry.making import ANNA, make_provenance

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals


@pytest.fixture(scope="module")
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


def test_a_version_is_traced_to_the_base_that_no_run_made(registry: Registry, policy: TransformersPolicy):
    """Version 2 was trained from the policy of version 1, which was trained from the base model."""
    runs = [("base", "p1", "base", "models/base"), ("p1", "p2", "p1", "store/checkpoint")]
    for number, (parent, trained, against, folder) in enumerate(runs):
        key = f"traced-{number}"
        made = make_provenance(
            policies=(parent, trained), champion=against, config={"policy": {"model": folder}, "scenarios": {}}
        )
        tags = {"run_key": key, "policy": trained, "verdict": "promote", "checkpoint_sha256": trained}
        tags |= {"checkpoint_uri": "store/x", "champion_sha256": against}
        run_id = registry.open_run("tests", "run", run_key=key, params={})
        version = registry.register("traced", run_id, policy, tags=tags, provenance=made)
        registry.succession("traced").promote(version.version, reason="gates", by=ANNA)
    found = trace(registry, registry.at("models:/traced@champion"))
    assert [(one.policy, one.version, one.model) for one in found.parents] == [
        ("p1", 1, "store/checkpoint"),
        ("base", None, "models/base"),
    ]
    assert (found.version, found.judged_against, found.aliases) == (2, 1, ["candidate", "champion"])
    assert [one.champion for one in found.history] == [1, 2]


def test_what_differs_is_told_in_the_order_in_which_it_is_looked_at():
    """Code before packages before data before the machine."""
    then = make_provenance()
    now = make_provenance(code="new", packages={"torch": "2.14.0"}, scenarios="x", machine={"threads": "8"})
    found = then.differences(now)
    assert list(found) == ["code", "package torch", "scenarios", "processor", "threads"]
    assert found["package torch"] == ("2.13.0", "2.14.0")
    assert then.differences(then) == {}
