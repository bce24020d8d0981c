"""Planted failures are diagnosed, and healthy runs get no diagnosis."""

from __future__ import annotations

import shlex
from dataclasses import replace
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from grpo.config.loading import apply_overrides
from grpo.config.pipeline import PipelineConfig
from grpo.diagnosis import update_checks
from grpo.diagnosis.explain import CHECKS, CONSEQUENCES, explain
from grpo.evaluation.schema import ReportDocument
from tests.command_lines import CommandLine, parse
from tests.grpo.diagnosis.planted import Plant, planted_run
from tests.grpo.diagnosis.plants import FAILURES, HEALTHY
from tests.places import ROOT

CONFUSED: dict[str, str] = {}
"""Planted failures of which another diagnosis is the first. All others are diagnosed right."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ReportDocument]:
    """The runs with a planted failure, by its kind."""
    return {kind: planted_run(plant, tmp_path_factory.mktemp(kind)) for kind, plant in FAILURES.items()}


def test_every_check_has_a_planted_failure():
    """At least 15 kinds, and the consequences name only these. One check gives one of two kinds."""
    kinds = {check.__name__ for check in CHECKS} | {"few_scenarios"}
    assert len(FAILURES) >= 15
    assert set(FAILURES) == kinds
    assert {kind for row in CONSEQUENCES.values() for kind in row} | set(CONSEQUENCES) <= kinds
    TopologicalSorter(CONSEQUENCES).prepare()  # raises if two kinds follow from each other, so that both were left out


def test_the_first_diagnosis_is_the_planted_failure(runs: dict[str, ReportDocument]):
    """The confusion table, planted kind → first diagnosis, is the diagonal but for `CONFUSED`, at most 1 in 10."""
    first = {kind: explain(document).diagnoses[:1] for kind, document in runs.items()}
    table = {kind: diagnoses[0].kind if diagnoses else "none" for kind, diagnoses in first.items()}
    assert table == {kind: CONFUSED.get(kind, kind) for kind in FAILURES}
    assert len(CONFUSED) <= 0.1 * len(FAILURES)


def test_every_command_can_be_run(runs: dict[str, ReportDocument]):
    """The command parses each, and the config of the run is valid with the settings that it changes."""
    for document in runs.values():
        config = PipelineConfig.model_validate(yaml.safe_load(document.config))
        for diagnosis in explain(document).diagnoses:
            program, *arguments = shlex.split(diagnosis.command)
            assert program == "grpo"
            parse(
                CommandLine(page=diagnosis.kind, line=1, program=program, arguments=tuple(arguments), mentioned=False)
            )
            changes = [value for name, value in pairwise(arguments) if name == "--set"]
            assert apply_overrides(config, tuple(changes)) != config or not changes


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_has_no_diagnosis(name: str, tmp_path: Path):
    """The summary then states plainly that nothing hinders learning."""
    explanation = explain(planted_run(HEALTHY[name], tmp_path))
    assert explanation.diagnoses == ()
    assert explanation.unread == ()
    assert explanation.summary == "Nothing that hinders learning was measured."


def test_a_cause_hides_its_consequences(tmp_path: Path):
    """With a constant reward no group is informative, which is not a second cause."""
    (diagnosis,) = explain(planted_run(FAILURES["constant_reward"], tmp_path)).diagnoses
    assert diagnosis.kind == "constant_reward"


def test_a_policy_that_one_update_destroyed_is_not_one_that_needs_more_tokens(tmp_path: Path):
    """Its replies no longer end, which is a consequence of the step. These are the numbers of a real run."""
    broken = Plant(
        success=lambda place: 0.33 if place.part == 0 else 0.0,
        change=lambda place, success: {"stop": "terminated" if place.part == 0 else "truncated"},
        metrics=lambda index: {"kl_to_base": 9.5 if index else 0.0, "entropy": 1.2 if index else 0.33},
    )
    (diagnosis,) = explain(planted_run(broken, tmp_path)).diagnoses
    assert (diagnosis.kind, diagnosis.certainty) == ("learning_rate_too_large", "certain")


def test_numbers_and_values_are_in_the_diagnosis(tmp_path: Path):
    """Draws above .8 are 1 of 5 episodes. The timeout that their error names is doubled."""
    diagnosis = explain(planted_run(FAILURES["failed_episodes"], tmp_path)).diagnoses[0]
    assert diagnosis.measured.startswith(("19.4% of 144", "20.1% of 144", "20.8% of 144"))
    assert diagnosis.change == "raise rollout.turn_timeout_s to 240, or make the environment answer faster"
    assert diagnosis.command == "grpo train CONFIG --set rollout.turn_timeout_s=240 --set name=planted-retry"


def test_a_continuous_rollout_is_sampled_by_newer_weights_instead(tmp_path: Path):
    """Half of max_staleness 4. Of 48 trained and 20 dropped episodes in each iteration, 29 % are dropped."""
    settings = {
        "training": {"importance_sampling_cap": 2.0},
        "rollout": {"mode": "continuous", "max_staleness": 4},
    }
    plant = Plant(settings=settings, metrics=lambda index: {"mismatch_kl": 0.009, "dropped_episodes": 20})
    diagnoses = {diagnosis.kind: diagnosis for diagnosis in explain(planted_run(plant, tmp_path)).diagnoses}
    assert "--set rollout.max_staleness=2 " in diagnoses["mismatched_logprobs"].command
    assert "--set rollout.max_staleness=8 " in diagnoses["stale_episodes"].command
    assert diagnoses["stale_episodes"].measured.startswith("29% of the episodes were dropped")


def test_missing_episodes_are_named(tmp_path: Path):
    """Without episodes the metrics are still read, and the explanation does not claim that nothing is wrong."""
    document = planted_run(Plant(), tmp_path)
    for path in (tmp_path / "store").rglob("*.parquet"):
        path.unlink()
    explanation = explain(document)
    assert [reason.split(":")[0] for reason in explanation.unread] == [
        *(f"iteration {index}" for index in (0, 5, 6, 7)),
        "after",
    ]
    assert explanation.summary == "Some episodes could not be read."
    assert explanation.measurements["success"] == "22.9% → 81.2%"  # 11 and 39 of 48


def test_a_run_that_failed_in_its_first_update_is_explained_by_its_episodes(tmp_path: Path):
    """It has no metrics."""
    failed = {"decision": {"verdict": "failed", "reason": "no learning signal: …"}, "evaluation": None}
    plant = FAILURES["uninformative_groups"]
    document = planted_run(plant, tmp_path).model_copy(update={"iterations": ()})
    document = ReportDocument.model_validate({**document.model_dump(), **failed, "rollouts": document.rollouts[:1]})
    assert explain(document).diagnoses[0].kind == "uninformative_groups"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("no effect: iteration 0 changed no weight (learning rate 0", "learning_rate_too_small"),
        ("step 3 has loss nan; narrow the clip range", "learning_rate_too_large"),
        ("importance ratio before the first step is off by up to 1.00e-02", "mismatched_logprobs"),
        ("no learning signal: iteration 2 has no step within KL 0.01", "rejected_steps"),
    ],
)
def test_the_message_of_a_failed_update_is_understood(tmp_path: Path, reason: str, kind: str):
    """It is certain."""
    plant = Plant(document={"decision": {"verdict": "failed", "reason": reason}, "evaluation": None})
    (diagnosis,) = explain(planted_run(plant, tmp_path)).diagnoses
    assert (diagnosis.kind, diagnosis.certainty) == (kind, "certain")


def test_the_messages_are_those_of_the_learner():
    """Each part that is searched for is in a message of the source."""
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "grpo" / "learner").glob("*.py"))
    parts = (update_checks._DIVERGED, update_checks._NO_EFFECT, update_checks._NO_STEP, *update_checks._STALE)
    assert [part for part in parts if part not in source] == []


@pytest.mark.parametrize("kind", ["uninformative_groups", "constant_reward"])
@pytest.mark.parametrize(("discount", "is_discounted"), [(0.95, True), (1.0, False)])
def test_equal_rewards_teach_a_number_of_turns_where_returns_are_discounted(
    kind: str, discount: float, is_discounted: bool, tmp_path: Path
):
    """Otherwise they teach nothing."""
    training = {"credit_assignment": "state", "state_discount": discount}
    diagnosis = explain(planted_run(replace(FAILURES[kind], settings={"training": training}), tmp_path)).diagnoses[0]
    assert diagnosis.kind == kind
    assert ("turn" in diagnosis.meaning) is is_discounted
    assert ("advantage 0" in diagnosis.meaning) is not is_discounted


@pytest.mark.parametrize("kind", ["uninformative_groups", "constant_reward"])
def test_equal_rewards_are_no_fault_under_a_teacher(tmp_path: Path, kind: str):
    """The teacher gives them a gradient, so that neither larger groups nor another reward are advised."""
    distillation = {"teacher_model_name_or_path": "models/teacher"}
    plant = replace(FAILURES[kind], settings={"training": {"distillation": distillation}})
    kinds = [diagnosis.kind for diagnosis in explain(planted_run(plant, tmp_path)).diagnoses]
    assert kind not in kinds
