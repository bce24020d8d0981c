"""docs/operations.md is true: its commands exist, its messages are those of the code, its files exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

from typer.main import get_command

from tests.places import ROOT

MANUAL = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^ {4}(.+)$", MANUAL.replace("\\\n", " "), flags=re.MULTILINE) + re.findall(r"`([^`\n]+)`", MANUAL)
"""Blocks and quotations."""


def _commands(program: str) -> list[list[str]]:
    """Arguments of every call of a program that the page shows."""
    calls = [re.sub(r"^(.*exec worker |\.venv/bin/)", "", line).split("   #")[0] for line in SHOWN]
    return [shlex.split(call)[1:] for call in calls if call.startswith(f"{program} ")]


def test_commands_of_the_project_are_there_with_their_options():
    """A reader who types one gets no usage error."""
    from grpo_cli.app import app

    group = get_command(app)
    calls = _commands("grpo")
    assert len(calls) >= 4
    for name, *arguments in calls:
        command = group.commands[name]  # type: ignore[attr-defined]
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {one for one in arguments if one.startswith("-")} <= options, name


def test_targets_of_make_are_there():
    """`make up` and `make down`."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert {name for name, *_ in _commands("make")} <= targets


def test_commands_of_prefect_are_there():
    """Prefect has help for each of them, and for no other word."""
    calls = {tuple(word for word in call if re.fullmatch("[a-z-]+", word))[:2] for call in _commands("prefect")}
    assert len(calls) >= 4
    script = (
        "import sys\nfrom prefect.cli import app\n"
        "for words in sys.argv[1:]:\n    sys.argv[1:] = [*words.split(), '--help']\n    try:\n        app()\n"
        "    except SystemExit as end:\n        print('exit code', words, end.code)\n"
    )
    words = [*sorted(" ".join(call) for call in calls), "deployment nonsense"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    codes = dict(re.findall(r"^exit code (.+) (\d+)$", done.stdout, flags=re.MULTILINE))
    assert codes == {**dict.fromkeys(words, "0"), "deployment nonsense": "2"}, done.stdout + done.stderr


def test_messages_are_those_of_the_code():
    """Every quoted message is in the source that raises it."""
    table = MANUAL.split("| message |")[1].split("\n\n")[0]
    quoted = re.findall(r"`([^`]+)`", " ".join(row.split("|")[1] for row in table.splitlines()[2:]))
    files = [path for package in ("grpo", "tasks", "flows") for path in (ROOT / package).rglob("*.py")]
    source = "\n".join(path.read_text(encoding="utf-8") for path in files)
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    assert len(quoted) >= 15
    assert [phrase for phrase in quoted if phrase not in joined] == []


def test_files_are_there():
    """Paths of the repository that the page names."""
    named = {path for path in re.findall(r"\b((?:deployments|data|docs)/[\w./-]+)", " ".join(SHOWN))}
    made = {"deployments/.env"}
    assert sorted(path for path in named - made if not (ROOT / path).exists()) == []
