"""Cards in a real MLflow store, and texts of strangers in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from grpo.errors import AddressError
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.registry import ChampionChange, ModelVersion, Registry
from grpo.registry.markdown import escaped
from grpo.registry.model_card import MAX_DESCRIPTION, model_description, version_card
from grpo.registry.provenance import Estimate, HeldOut
from grpo.registry.versions import list_versions
from tests.grpo.registry.making import ANNA, make_provenance, put_version

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals

HOSTILE = "a|b <img src=x> [x](javascript:1) `code` **bold**\n# heading\x1b[2J https://evil.example www.evil.example"
HELDOUT = HeldOut(
    metric="success",
    candidate=Estimate(mean=0.8125, low=0.74, high=0.88),
    champion=Estimate(mean=0.412, low=0.35, high=0.47),
    scenarios=120,
    confidence=0.95,
)
GATES: dict[str, Any] = {
    "checks": {"improvement in success": 0.34, "length": 2.5},
    "conditions": {"improvement in success": "> 0", "length": "<= 2"},
    "failed_gates": ("length",),
    "heldout": HELDOUT,
}


@pytest.fixture
def policy(tiny_folder: Path) -> TransformersPolicy:
    return load(tiny_folder)


def _register(registry: Registry, policy: TransformersPolicy, model: str, key: str, **changes: Any) -> ModelVersion:
    tags = {"run_key": key, "policy": key, "verdict": "promote", "checkpoint_uri": f"store/{key}"}
    tags |= {"checkpoint_sha256": key, "champion_sha256": changes.pop("against", "base")}
    run_id = registry.open_run("cards", f"run of {key}", run_key=f"{model}-{key}", params={})
    return registry.register(model, run_id, policy, tags=tags, provenance=make_provenance(**GATES, **changes))


def _description(registry: Registry, model: str, version: int) -> str:
    return str(registry.client.get_model_version(model, str(version)).description)


def test_a_version_has_a_card_that_people_read(registry: Registry, policy: TransformersPolicy):
    """Result beside the champion's, gates with pass and fail, data, limits, use, and a link to the run."""
    version = _register(registry, policy, "carded", "k1")
    card = _description(registry, "carded", version.version)
    assert "| this version | 0.812 | 0.740 to 0.880 |" in card
    assert "| the champion before it, or the base | 0.412 | 0.350 to 0.470 |" in card
    assert "| length | 2.5 | &lt;= 2 | **no** |" in card
    assert "| improvement in success | 0.34 | &gt; 0 | yes |" in card
    assert "    grpo export models:/carded/1 carded" in card
    run = registry.client.get_run(version.run_id).info
    page = f"#/experiments/{run.experiment_id}/runs/{run.run_id}"
    assert f"[run of k1]({page}), with its [report]({page}/artifacts/report.html)" in card
    assert "No gate checked the safety" in card


def test_the_description_of_a_model_names_the_champion(registry: Registry, policy: TransformersPolicy):
    """After a registration, two promotions and a rollback."""
    _register(registry, policy, "described", "k1")

    def described() -> str:
        return str(registry.client.get_registered_model("described").description)

    assert described().startswith("**No version of described is in service.**")
    registry.promote("described", 1, reason="the first <b>", by=ANNA)
    assert re.match(r"\*\*Champion: version 1\*\*, promoted 20.* UTC: the first &lt;b&gt;\n", described())
    _register(registry, policy, "described", "k2", against="k1")
    assert described().startswith("**Champion: version 1**")
    registry.promote("described", 2, reason="better", by=ANNA)
    assert described().startswith("**Champion: version 2**")
    assert "grpo export models:/described/2" in described()
    registry.rollback("described", reason="refunds twice", by=ANNA)
    assert re.match(r"\*\*Champion: version 1\*\*, restored by a rollback .*refunds twice", described())


def test_texts_of_strangers_are_shown_and_never_markup(registry: Registry, policy: TransformersPolicy):
    """Names of runs, gates and paths in a card, in a table and on one line."""
    config = {"environment": {"kind": HOSTILE}, "scenarios": {"sources": [{"kind": "jsonl", "path": HOSTILE}]}}
    checks = {f"category {HOSTILE}": None}
    provenance = make_provenance(config=config, checks=checks, decision=HOSTILE)
    card = version_card("m", provenance, "refuse", run="", address="models:/m/1")
    for part in ("<img", "[x](", "**bold", "`code`", "\n# heading", "\x1b", "https://", "www."):
        assert part not in card
    (row,) = [line for line in card.splitlines() if line.startswith("| category")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 5
    assert escaped("a|b <i> [x](y)") == "a&#124;b &lt;i&gt; \\[x\\](y)"


def test_a_card_has_a_blank_line_between_its_parts_and_names_the_algorithm():
    """The number of gates that are left out follows the table, if there are any."""
    training, policy = {"algorithm": "gspo"}, {"model": "org/base"}
    few = make_provenance(config={"training": training, "policy": policy}, checks={"length": 1.0})
    card = version_card("m", few, "refuse", run="R", address="models:/m/1")
    assert "\n- Base model: org/base\n- Training: GSPO, " in card
    assert "more in the report" not in card
    assert card.endswith("\n\nTraining run: R")
    assert "\n\n### Task and data\n\n- Environment: unknown\n" in card
    many = make_provenance(config={}, checks=dict.fromkeys(map(str, range(500)), 1.0))
    card = version_card("m", many, "refuse", run="R", address="models:/m/1")
    assert "\n- Base model: unknown\n- Training: GRPO, " in card
    long = make_provenance(checks={"length": 1.0}, conditions={"length": "<" * 90})
    (row,) = [line for line in version_card("m", long, "refuse", run="R", address="a").splitlines() if "length" in line]
    assert row.count("&lt;") == 9
    rows = sum(line[:2] == "| " and line[2].isdigit() for line in card.splitlines())
    assert f"\n\n{500 - rows} more in the report.\n\n" in card


def test_a_taskset_is_named_in_a_card():
    """As the environment and as the source of the scenarios, each by its id."""
    taskset = {"kind": "verifiers", "id": "my-words", "args": {}}
    config: dict[str, Any] = {"environment": taskset, "scenarios": {"sources": [taskset]}}
    card = version_card("m", make_provenance(config=config), "refuse", run="", address="models:/m/1")
    assert "- Environment: my-words\n- Scenarios: verifiers my-words\n" in card


def test_a_card_fits_into_a_database_column():
    """However many gates and sources, and however long their names."""
    checks: dict[str, float | None] = {f"{number} {'|' * 5000}": 1.0 for number in range(500)}
    sources: list[Any] = [{"kind": "jsonl", "path": "`" * 5000}] * 50
    provenance = make_provenance(config={"scenarios": {"sources": sources}}, checks=checks, decision="<" * 9000)
    card = version_card("m" * 100, provenance, "refuse", run="r" * 300, address="models:/" + "m" * 100 + "/999999999")
    assert len(card) <= MAX_DESCRIPTION - 500
    description = model_description("m" * 100, champion=None, change=None, newest=3, card=card)
    assert len(description) <= MAX_DESCRIPTION
    assert "## Version 3" in description


@pytest.mark.parametrize(("forced", "opening"), [(True, " UTC, against a gate: better"), (False, " UTC: better")])
def test_a_description_says_whether_the_champion_was_promoted_against_a_gate(forced: bool, opening: str):
    """A long reason is cut."""
    change = ChampionChange(
        number=1,
        action="promote",
        champion=2,
        content="c",
        replaced=None,
        previous=None,
        reason="better" + "!" * 900,
        by=ANNA,
        at="2026-11-20T12:00:00+00:00",
        forced=forced,
    )
    text = model_description("m", champion=2, change=change, newest=2, card="")
    assert text.startswith("**Champion: version 2**, promoted 2026-11-20 12:00" + opening)
    assert 100 < text.count("!") < 200


def test_a_heldout_result_is_read_back_from_its_tag():
    """Any other text is not one."""
    assert HeldOut.parse(str(HELDOUT)) == HELDOUT
    assert HeldOut.parse("success 1 [1, 1]") is None


def test_versions_are_listed_newest_first_with_their_results(registry: Registry, policy: TransformersPolicy):
    """Those of this pipeline and those of others, of one model or of all."""
    _register(registry, policy, "cards-listed", "k1")
    registry.promote("cards-listed", 1, reason="first", by=ANNA)
    put_version(registry, "cards-listed", "foreign", against="k1", verdict="refuse")
    newest, oldest = list_versions(registry, "cards-listed")
    assert (newest.version, newest.verdict, newest.heldout, newest.run) == (2, "refuse", None, None)
    assert (oldest.address, oldest.aliases) == ("models:/cards-listed/1", ["candidate", "champion"])
    assert (oldest.heldout, oldest.run) == (HELDOUT, "run of k1")
    assert {row.name for row in list_versions(registry)} >= {"cards-listed"}
    with pytest.raises(AddressError, match=r"no model 'absent' is registered\. There are .*cards-listed"):
        list_versions(registry, "absent")
