"""All commands: help with examples, exit codes, completion, imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo import interrupts
from grpo_cli.app import app
from grpo_cli.errors import FAILED, REFUSED, WRONG_INPUT
from tests.command_lines import commands, examples
from tests.places import ROOT

QUICKSTART = str(ROOT / "data" / "configs" / "quickstart.yaml")
GRPO = [sys.executable, "-m", "grpo_cli"]
"""The command as it is called where it is installed."""


def _grpo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GRPO, *arguments],
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_program_that_calls_the_commands_itself_keeps_its_handlers_of_signals():
    """As a notebook or a test does; only the process of `grpo` itself is ended some time after a signal."""
    before = signal.getsignal(signal.SIGTERM)
    assert CliRunner().invoke(app, ["schema"]).exit_code == 0
    assert signal.getsignal(signal.SIGTERM) is before
    assert not interrupts._state.is_command


@pytest.mark.parametrize("name", list(commands()))
def test_the_help_of_a_command_has_a_sentence_and_an_example_of_it(name: str):
    """`tests/docs/test_commands.py` reads the examples by the command itself."""
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert (commands()[name].help or "").split("\n")[0].rstrip().endswith((".", ";", ",", "it"))
    shown = [line.arguments for line in examples() if line.page == f"grpo {name} --help"]
    assert [arguments[0] for arguments in shown] == [name] * max(1, len(shown))
    assert "Example: grpo" in result.output


def test_the_help_of_grpo_lists_every_command_and_exit_code():
    """The first page of a new user."""
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert all(f" {name} " in result.output for name in commands())
    assert "0 done, 1 failed, 2 wrong input, 3 a gate refused" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["check-reward", "helpfulness"], 0),
        (["ingest", QUICKSTART, "--set", "scenarios.sources.0.path=nowhere.jsonl"], FAILED),
        (["train", "nowhere.yaml"], WRONG_INPUT),
        (["train", QUICKSTART, "--quickly"], WRONG_INPUT),
        (["check-reward", "conciseness", "--set", "target=20"], REFUSED),
    ],
)
def test_the_exit_code_is_that_of_the_outcome(arguments: list[str], code: int):
    """0 done, 1 failed, 2 wrong input, 3 refused; never a traceback."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code
    assert "Traceback" not in result.output


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "arguments",
    [
        ["lineage", "nonsense"],
        ["lineage", "models:/missing@champion"],
        ["reproduce", "nonsense"],
        ["promote", "models:/missing@candidate", "--reason", "x"],
        ["promote", "models:/missing/3", "--reason", "x"],
        ["promote", "missing", "--reason", "x"],
        ["rollback", "models:/missing@champion", "--reason", "x"],
        ["rollback", "models:/missing/3", "--reason", "x"],
    ],
)
def test_a_model_that_is_not_there_is_wrong_input(server: str, arguments: list[str]):
    """For every command, and for any form of the address."""
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, "AddressError" in result.stderr) == (WRONG_INPUT, True), result.output


@pytest.mark.usefixtures("server")
def test_an_error_of_the_registry_is_printed_without_a_traceback():
    """Once, by the command itself."""
    command = [sys.executable, "-m", "grpo_cli", "promote", "models:/missing@candidate", "--reason", "x"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == WRONG_INPUT
    assert done.stderr.count("AddressError") == 1
    assert done.stderr.count("no model at models:/missing@candidate") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["promote", "rollback"])
@pytest.mark.parametrize(("reason", "length"), [("", 0), ("  ", 0), ("x" * 1001, 1001)])
def test_a_reason_of_invalid_length_is_refused_before_anything_starts(command: str, reason: str, length: int):
    """Exit code 2, with the name of the option."""
    result = CliRunner().invoke(app, [command, "models:/desk@champion", "--reason", reason])
    assert result.exit_code == WRONG_INPUT
    assert "--reason" in result.stderr
    assert f"it has {length} characters" in " ".join(result.stderr.replace("│", " ").split())


def test_help_imports_no_heavy_package():
    """Neither PyTorch nor Prefect nor MLflow, nor the configs, for which pydantic builds a hundred classes."""
    code = (
        "import sys; from typer.testing import CliRunner; from grpo_cli.app import app;"
        "CliRunner().invoke(app, ['--help']); CliRunner().invoke(app, ['train', '--help']);"
        "heavy = ('torch', 'prefect', 'mlflow', 'transformers', 'great_expectations', 'grpo.config.pipeline');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_shell_completes_commands_and_options():
    """bash completes the command, zsh the options with their help."""
    words = _grpo(_GRPO_COMPLETE="complete_bash", COMP_WORDS="grpo pret", COMP_CWORD="1")
    assert words.stdout.split() == ["pretrain"]
    options = _grpo(_GRPO_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="grpo train --dry")
    assert '"--dry-run":"Show what the command would do, and end without doing it."' in options.stdout


def test_a_shell_can_install_its_completion(tmp_path: Path):
    """`--show-completion` prints it, `--install-completion` puts it where bash finds it."""
    command = " ".join(GRPO)
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def bash(option: str) -> str:
        done = subprocess.run(
            ["bash", "-c", f"{command} {option}; true"],  # two commands, so that bash stays their parent
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.stdout

    assert "_GRPO_COMPLETE=complete_bash" in bash("--show-completion")
    bash("--install-completion")
    assert any("_GRPO_COMPLETE" in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


def test_importing_the_library_is_light():
    """`import grpo` loads neither torch nor Prefect nor MLflow."""
    code = "import sys, grpo; print([m for m in ('torch', 'prefect', 'mlflow', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"
