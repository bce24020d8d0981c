"""Every command on a page exists; quick ones are run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from grpo.config.commented_yaml import commented_yaml
from grpo.config.pipeline import load_config
from grpo_cli.app import app
from tests.command_lines import PROGRAMS, CommandLine, commands, commands_of, examples, pages, parse
from tests.places import ROOT

LINES = [line for page in pages() for line in commands_of(page)] + examples()
QUICKSTART = "data/configs/quickstart.yaml"
PLACEHOLDERS = {"CONFIG": QUICKSTART, "NAME": "helpfulness"}
"""Values for the words in capitals."""
RUN = {
    "check-reward": (0, 3),
    "doctor": (0, 1),
    "ingest": (0,),
    "init": (0,),
    "keys": (0, 2),
    "runs": (0,),
    "models": (0, 2),
    "schema": (0,),
}
"""Commands that are run, and their exit codes. Only the ingestion of the quickstart is run, because others take
minutes and need data that is not here."""
PARSED_ONLY = {
    "admit": "needs a version that is not signed; tests/flows/cli/test_registry.py runs it",
    "deploy": "needs a server; tests/e2e/test_deployments.py runs it",
    "down": "stops servers; the end-to-end tests of the stack run it",
    "env": "needs a server; the end-to-end tests of the stack run it",
    "explain": "needs the report of a run; tests/flows/cli/test_runs.py runs it",
    "export": "needs a registered model; tests/grpo/registry/test_export.py writes one",
    "erase": "needs the log of a server; tests/flows/test_erasure.py runs it",
    "evaluate": "needs a model that a run has registered; tests/flows/test_evaluate.py runs it",
    "migrate": "creates databases for fifteen seconds; tests/flows/cli/test_servers.py runs it",
    "lineage": "needs a registered model; the tests of the registry run it",
    "pretrain": "takes twenty minutes",
    "promote": "needs a registered model; the tests of the registry run it",
    "registry": "moves the registry of a home; tests/e2e/test_registry_move.py runs it",
    "report": "needs the report of a run; tests/flows/cli/test_runs.py runs it",
    "serve": "ends when it is interrupted; tests/grpo/serving run it",
    "store": "needs a store that a run has filled; tests/flows/cli/test_store.py runs it",
    "show": "needs the report of a run; tests/flows/cli/test_runs.py runs it",
    "reproduce": "trains a model again; the tests of the registry run it",
    "retrain": "trains; the tests of retraining run it",
    "rollback": "needs a registered model; the tests of the registry run it",
    "train": "trains for minutes, unless it is a dry run, which is run; tests/e2e run it",
    "train-node": "ends when it is interrupted; tests/grpo/learner/test_nodes.py runs it",
    "tune": "trains many times; the tests of tuning run it",
    "ui": "ends when it is interrupted; tests/flows/cli/test_servers.py runs it",
    "verify-log": "needs the log of a server; tests/tasks/test_verify_log.py runs it",
    "up": "starts servers; the end-to-end tests of the stack run it",
}
"""Commands whose lines are parsed by the real command, and why they are not run."""
WRITTEN = {
    "config.yaml", "grpo.yaml", "shop/grpo.yaml", "mine.yaml", "retrain.yaml", "asked.json",
    "runs/quickstart-study/best.yaml",
}  # fmt: skip
"""Files that an earlier command of the same page, or the reader, writes."""


def _of(program: str) -> list[Any]:
    return [pytest.param(line, id=str(line)) for line in LINES if line.program == program]


def _is_file(value: object) -> bool:
    """True for an argument that names an existing file of the project."""
    text = str(value)
    shaped = re.fullmatch(r"[\w./-]+\.(yaml|yml|jsonl?|parquet|csv|tsv)|data/[\w./-]+", text)
    return shaped is not None and text not in WRITTEN


@pytest.mark.parametrize("line", _of("grpo"))
def test_a_command_of_grpo_is_one_that_there_is(line: CommandLine):
    """Its options and arguments are read by the real command; files that it reads are there; overrides fit."""
    values = parse(line)
    name = line.arguments[0]
    read = {"config", "start", "checkpoint", "model", "conversations", "scenarios_file"}
    named = [str(value) for key, value in values.items() if key in read and value is not None]
    missing = [value for value in named if _is_file(value) and not (ROOT / value).exists()]
    assert not missing, f"{line}: no file {', '.join(missing)}"
    if name in ("train", "ingest", "init") and values.get("override"):
        config = PLACEHOLDERS.get(str(values.get("config") or values.get("start") or "CONFIG"), values.get("config"))
        if str(config) not in WRITTEN and (ROOT / str(config)).is_file():
            load_config(ROOT / str(config), tuple(values["override"]))


def test_every_command_is_run_or_has_a_reason_why_it_is_only_parsed():
    """A new command is named in RUN or in PARSED_ONLY."""
    assert sorted(set(commands()) - set(RUN) - set(PARSED_ONLY)) == []
    assert set(RUN) & set(PARSED_ONLY) == set()


def _is_run(line: CommandLine) -> bool:
    name, *rest = line.arguments
    if line.mentioned and not (name == "check-reward" and rest):
        return False
    if name == "check-reward" and any(":" in word for word in rest):
        return False  # a reward of the page's own: tests/docs/test_troubleshooting.py runs it
    if name == "ingest":
        return rest[0] == QUICKSTART
    return name in RUN or (name == "train" and "--dry-run" in rest)


def _runs() -> list[Any]:
    """Commands that are run. One that stands at several places is run once, named by the first."""
    first = {line.arguments: line for line in reversed(LINES) if line.program == "grpo" and _is_run(line)}
    return [pytest.param(line, id=str(line)) for line in reversed(first.values())]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("line", _runs())
def test_a_command_that_ends_quickly_runs(line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As it is printed, in a folder with the project's data."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    arguments = [PLACEHOLDERS.get(argument, argument) for argument in line.arguments]
    if arguments[0] != "init":
        for name in WRITTEN.intersection(arguments):
            (tmp_path / name).write_text(commented_yaml(load_config(ROOT / QUICKSTART)))
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code in RUN.get(arguments[0], (0,)), f"{line}: {result.output} {result.exception}"


@pytest.mark.parametrize("line", _of("make"))
def test_a_target_of_make_is_one_that_there_is(line: CommandLine):
    """`make -n` finds it and what it is made from."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    code, stderr = _make(line.arguments)
    assert code == 0, f"{line}: {stderr}"


@cache
def _make(arguments: tuple[str, ...]) -> tuple[int, str]:
    done = subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


PREFECT_HELPS = """
import contextlib, io, json, sys
from prefect.cli import app

texts = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["prefect", *words, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        try:
            app()
        except SystemExit as end:
            texts.append(None if end.code else text.getvalue())
        else:
            texts.append(text.getvalue())
json.dump(texts, sys.stdout)
"""


def _prefect_words(line: CommandLine) -> tuple[str, ...]:
    return tuple(word for word in line.arguments if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-"))[:2]


@cache
def _prefect_helps() -> dict[tuple[str, ...], str | None]:
    """Help of each command of Prefect on the pages, and of its group; None if Prefect has none."""
    wanted = sorted(
        {
            words
            for line in LINES
            if line.program == "prefect"
            for words in (_prefect_words(line), _prefect_words(line)[:1])
        }
    )
    command = [sys.executable, "-c", PREFECT_HELPS, json.dumps(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return dict(zip(wanted, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("line", _of("prefect"))
def test_a_command_of_prefect_is_one_that_there_is(line: CommandLine):
    """Its own help knows the command and each option; a deployment that it runs stands in prefect.yaml."""
    words = _prefect_words(line)
    known = next((text for text in map(_prefect_helps().get, (words, words[:1])) if text is not None), None)
    assert known is not None, f"{line}: prefect has no command {' '.join(words)}"
    options = {argument.partition("=")[0] for argument in line.arguments if argument.startswith("-")}
    unknown = [option for option in options if not re.search(rf"(?<![\w-]){option}(?![\w-])", known)]
    assert not unknown, f"{line}: prefect {' '.join(words)} has no {', '.join(unknown)}"
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    there = {f"{one['entrypoint'].split('.')[-2]}/{one['name']}" for one in deployments}
    wanted = [word for word in line.arguments if re.fullmatch(r"[a-z]+/[a-z-]+", word)]
    assert set(wanted) <= there, f"{line}: prefect.yaml has {', '.join(sorted(there))}"


def test_commands_are_found_wherever_they_stand(tmp_path: Path):
    """In fences, indented blocks and sentences, with their line; prose and trees are not commands."""
    page = tmp_path / "page.md"
    page.write_text(
        "Call `grpo train CONFIG`, or `make test`.\n\n"
        "    $ GRPO_DEBUG=1 .venv/bin/grpo init mine.yaml --reference   # why\n"
        "    grpo     the library\n\n"
        "```bash\n"
        "prefect deployment run \\\n"
        "    train/quickstart\n"
        "grpo doctor | less\n"
        "```\n"
        "The grpo command. `grpo.rewards` is a package.\n"
    )
    parsed = sorted((line.line, line.program, line.arguments, line.mentioned) for line in commands_of(page))
    assert parsed == [
        (1, "grpo", ("train", "CONFIG"), True),
        (1, "make", ("test",), True),
        (3, "grpo", ("init", "mine.yaml", "--reference"), False),
        (7, "prefect", ("deployment", "run", "train/quickstart"), False),
        (9, "grpo", ("doctor",), False),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trian", QUICKSTART), "no command trian"),
        (("train", QUICKSTART, "--quickly"), "No such option: --quickly"),
        (("train",), "Missing parameter: config"),
        (("init", "--from"), "requires an argument"),
    ],
)
def test_an_unknown_command_is_reported_with_its_page_and_line(arguments: tuple[str, ...], message: str):
    """So that its author finds it."""
    wrong = CommandLine(page="page.md", line=7, program="grpo", arguments=arguments, mentioned=False)
    with pytest.raises(AssertionError, match=rf"page\.md:7 .*{message}"):
        parse(wrong)


def test_the_programs_are_known():
    """Each has a test above."""
    assert {line.program for line in LINES} <= set(PROGRAMS)
