from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from typer.testing import CliRunner, Result

from grpo.artifacts import ArtifactStore
from grpo.diagnosis.explain import explain
from grpo.evaluation.explanation import Explanation
from grpo.evaluation.schema import ReportDocument, RolloutRecord
from grpo.messages import Message, ToolCall
from grpo.tables import write_trajectories
from grpo.trajectories import Outcome, Trajectory, Turn
from grpo_cli.app import app
from tests.doubles import make_trajectory, put_file
from tests.grpo.diagnosis.planted import planted_run
from tests.grpo.diagnosis.plants import FAILURES
from tests.grpo.evaluation.test_html_report import document


def _report(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["report", *arguments])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run in a home of its own: only report.json is left of it."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    folder = tmp_path / "weekly"
    folder.mkdir()
    (folder / "report.json").write_text(document().model_dump_json())
    return folder


@pytest.mark.parametrize("named", ["weekly", "{folder}", "{folder}/report.json"])
def test_a_run_is_found_by_name_and_by_path(run: Path, named: str):
    """Its page is written again, and its decision printed."""
    result = _report(named.format(folder=run))
    assert result.exit_code == 0
    assert "decision: promote" in result.output
    assert "held-out success candidate 0.813" in result.output
    assert "<html" in (run / "report.html").read_text()


def test_json_prints_the_document_itself(run: Path):
    """`--json` prints nothing else, and leaves the folder as it is."""
    result = _report("weekly", "--json")
    assert ReportDocument.model_validate_json(result.stdout) == document()
    assert [path.name for path in run.iterdir()] == ["report.json"]


def test_a_run_that_is_not_there_is_wrong_input(run: Path):
    """The error names those that are."""
    result = _report("monthly")
    assert result.exit_code == 2
    assert "Runs with a report: weekly" in result.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as a report"),
        ("[1]", "cannot be read as a report"),
        (json.dumps({"schema_version": "0"}), "schema version '0', but this release reads 2"),
        (json.dumps({"schema_version": "2", "name": "weekly"}), "Field required"),
    ],
)
def test_a_document_that_cannot_be_read_is_an_error_with_its_reason(run: Path, content: str, message: str):
    """Exit code 1, no traceback, and no page of it."""
    (run / "report.json").write_text(content)
    result = _report("weekly")
    assert result.exit_code == 1
    assert message in result.stderr
    assert not (run / "report.html").exists()


def test_runs_are_listed_with_their_results_the_newest_first(run: Path):
    """A report that cannot be read is left out, and named."""
    older = document().model_copy(update={"name": "daily", "created": "2020-01-02T03:04:05+00:00"})
    (run.parent / "daily").mkdir()
    (run.parent / "daily" / "report.json").write_text(older.model_dump_json())
    (run.parent / "torn").mkdir()
    (run.parent / "torn" / "report.json").write_text("{")
    result = CliRunner().invoke(app, ["runs"])
    assert result.exit_code == 0
    assert result.stdout.index(document().name) < result.stdout.index("daily")
    assert "2020-01-02 03:04" in result.stdout
    assert "0.813" in result.stdout
    assert "torn" in result.stderr
    listed = json.loads(CliRunner().invoke(app, ["runs", "--json"]).stdout)
    assert [row["name"] for row in listed] == [document().name, "daily"]


def test_a_home_without_runs_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Exit code 0."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    result = CliRunner().invoke(app, ["runs"])
    assert (result.exit_code, "no runs in" in result.stdout) == (0, True)


STRANGE = "[red]hi[/red]\x1b[2J\n=== scenario fake\n:smile: \u202egnp"


def _episode(scenario: str, reward: float, *, success: bool, **changes: object) -> Trajectory:
    messages = (
        Message(role="user", content=STRANGE),
        Message(role="assistant", content="", tool_calls=(ToolCall(name="refund", arguments={"order": "7"}),)),
        Message(role="tool", content='{"done": "refund"}'),
        Message(role="assistant", content=f"done for {reward}"),
    )
    return make_trajectory(
        scenario_id=scenario,
        category="refund" if scenario < "c" else "loss",
        turns=tuple(Turn(message=message, start=0, stop=0) for message in messages),
        terminal_reward=reward,
        breakdown={"checks": reward},
        outcome=Outcome.of({"honest": success}),
        **changes,
    )


@pytest.fixture
def recorded(run: Path) -> Path:
    """The run with an iteration and the held-out episodes of three scenarios before and after it."""
    store = ArtifactStore(str(run.parent / "store"))
    parts: dict[Literal["before", "after"] | int, list[Trajectory]] = {
        0: [
            _episode("t", 0.1, success=False, stop="truncated"),
            _episode("t", 0.9, success=True, sample=1, stop="turn_limit"),
        ],
        "before": [_episode(name, 0.2, success=False) for name in "abc"],
        "after": [
            _episode(name, reward, success=reward > 0.5) for name, reward in zip("abc", (1, 0.3, 0.8), strict=True)
        ],
    }
    rollouts = [
        RolloutRecord(
            part=part,
            scored=(
                put_file(
                    store, "scored", ".parquet", lambda path, t=trajectories: write_trajectories(path, t, provenance={})
                ),
            ),
        )
        for part, trajectories in parts.items()
    ]
    report = document().model_copy(update={"rollouts": tuple(rollouts)})
    (run / "report.json").write_text(report.model_dump_json())
    return run


def _show(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["show", "weekly", *arguments])


def _replies(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [line.split("done for ")[1] for line in result.stdout.splitlines() if "done for" in line]


def test_the_episodes_of_a_run_are_counted(recorded: Path):
    """A row a part, filtered like the conversations."""
    result = _show()
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith(("iteration", "before ", "after "))]
    assert rows == [
        ["iteration", "0", "2", "1", "0.500", "1", "1", "1", "1", "0"],
        ["before", "3", "3", "0.200", "0", "3", "0", "0", "0"],
        ["after", "3", "3", "0.700", "2", "1", "0", "0", "0"],
    ]
    (row,) = [
        line for line in _show("--max-reward", "0.5", "--policy", "after").stdout.splitlines() if "after  " in line
    ]
    assert row.split()[:3] == ["after", "1", "1"]
    assert [path.name for path in recorded.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    ("options", "replies"),
    [
        ([], ["0.2", "1", "0.2", "0.3", "0.2", "0.8"]),
        (["--limit", "1"], ["0.2", "1"]),
        (["--scenario", "b"], ["0.2", "0.3"]),
        (["--category", "loss"], ["0.2", "0.8"]),
        (["--outcome", "success"], ["0.2", "1", "0.2", "0.8"]),
        (["--policy", "after", "--outcome", "failure"], ["0.3"]),
        (["--policy", "before", "--min-reward", "0.25"], []),
        (["--policy", "after", "--min-reward", "0.25", "--max-reward", "0.9"], ["0.3", "0.8"]),
        (["--iteration", "0"], ["0.1", "0.9"]),
        (["--iteration", "0", "--outcome", "truncated"], ["0.1"]),
        (["--iteration", "0", "--outcome", "turn_limit"], ["0.9"]),
    ],
)
def test_conversations_are_filtered_and_paired_by_scenario(recorded: Path, options: list[str], replies: list[str]):
    """Before and after stand one under the other, and both if one of them is selected."""
    assert _replies(_show("--conversations", *options)) == replies


def test_a_conversation_shows_reward_outcome_turns_and_calls_as_plain_text(recorded: Path):
    """Texts of strangers are indented and escaped: no markup, no control character, no heading of their own."""
    shown = _show("--conversations", "--scenario", "a", "--policy", "after").stdout
    assert "=== scenario a, sample 0, category refund, difficulty easy" in shown
    assert "reward 1 (checks 1)\noutcome success (honest yes). Stop terminated\n" in shown
    assert '    call refund {"order": "7"}\n  tool:\n    {"done": "refund"}\n' in shown
    assert "    [red]hi[/red]\\x1b[2J\n    === scenario fake\n    :smile: \\u202egnp\n" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--iteration", "4"], 1, "has no rollouts 4. It has iterations 0 to 0, and before, after"),
        (["--iteration", "0", "--policy", "after"], 2, "Leave one of them out"),
        (["--outcome", "won"], 2, "won"),
    ],
)
def test_parts_and_filters_that_do_not_exist_are_errors(recorded: Path, options: list[str], code: int, message: str):
    """The message has what there is."""
    result = _show("--conversations", *options)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.split())


def test_a_report_without_rollouts_has_a_remedy(run: Path):
    """Exit code 1, one line."""
    result = _show("--conversations")
    assert result.exit_code == 1
    assert "names no rollouts" in result.stderr


def test_a_run_is_explained(run: Path):
    """The diagnoses with the command to try, then the measurements. With --json it is one document."""
    document = planted_run(FAILURES["truncation"], run.parent)
    (run / "report.json").write_text(document.model_dump_json())
    result = CliRunner().invoke(app, ["explain", "weekly"])
    assert result.exit_code == 0
    assert "1. truncation (certain)" in result.stdout
    assert "59.0% of 144 episodes were truncated (bound 20%), by rollout.max_new_tokens 40" in result.stdout
    assert "grpo train CONFIG --set rollout.max_new_tokens=80 --set name=planted-retry" in result.stdout
    assert "episodes truncated" in result.stdout
    parsed = Explanation.model_validate_json(CliRunner().invoke(app, ["explain", "weekly", "--json"]).stdout)
    assert parsed == explain(document)
    (run / "report.json").write_text(document.model_copy(update={"explanation": parsed}).model_dump_json())
    assert "explanation: 1 cause hinders learning. grpo explain planted" in _report("weekly").stdout


def test_an_explanation_without_episodes_is_not_a_clean_bill(run: Path):
    """An old report names no rollouts, so that most checks have nothing to read."""
    result = CliRunner().invoke(app, ["explain", "weekly"])
    assert result.exit_code == 0
    assert "Some episodes could not be read." in result.stdout
    assert "no iteration: the report names no stored episodes" in result.stdout
