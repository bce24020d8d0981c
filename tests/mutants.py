"""Mutation run: `make mutants`, or `python -m tests.mutants rollout --sample 200` for this part and 200 of its mutants.

mutmut changes one operator, number, text or argument at a time, and the tests of the part's own folder must notice. It
leaves decorated functions (properties, registered gates) and module constants as they are. Each part is tried in a copy
of the tracked files; settings that all share stand in pyproject.toml, [tool.mutmut].
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.stats import status_by_exit_code
from mutmut.utils.format_utils import get_mutant_name

from grpo.rewards.learned.metrics import wilson_interval
from tests.places import ROOT

PARTS = {
    "algorithms": ("grpo/algorithms", ["tests/grpo/algorithms"]),
    "evaluation": ("grpo/evaluation", ["tests/grpo/evaluation"]),
    "renderers": (
        "grpo/renderers",
        [
            f"tests/grpo/renderers/test_{name}.py"
            for name in (
                *("chat_template", "encoding", "reply_format", "reply_grammar", "template_patches"),
                "written_calls",
            )
        ],
    ),
    "artifacts": (
        "grpo/artifacts.py",
        [f"tests/grpo/{name}.py" for name in ("test_artifacts", "test_artifacts_remote", "storage/test_moved")],
    ),
    "split": ("grpo/scenarios/split.py", ["tests/grpo/scenarios/test_split.py"]),
    "rollout": ("grpo/rollout", ["tests/grpo/rollout"]),
    "registry": ("grpo/registry", ["tests/grpo/registry"]),
    "log": (
        "grpo/log",
        ["tests/grpo/log", "tests/grpo/retraining/test_curation_by_days.py", "tests/tasks/test_verify_log.py"],
    ),
    "access": (
        "grpo/serving/access",
        [
            f"tests/grpo/serving/test_{name}.py"
            for name in (
                "budgets",
                "connections",
                "guard",
                "jwt_tokens",
                "keys",
                "limits",
                "preparation",
                "refused_work",
            )
        ],
    ),
    "sampling": (
        "grpo/policy/transformers/sampling",
        [
            f"tests/grpo/policy/transformers/test_{name}.py"
            for name in (
                *("followers", "logits_filters", "padded_sampler", "prefix_cache", "replaced_model", "sampler"),
                *("serving_sampler", "token_masks", "turn_sampler"),
            )
        ],
    ),
    "policy": ("grpo/policy/transformers", ["tests/grpo/policy"]),
    "learner": ("grpo/learner", ["tests/grpo/learner"]),
}
"""Source and tests of each part, the quick ones first."""


def main() -> None:
    """Try the parts that were named, or all, and print a row for each and its survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all without one")
    parser.add_argument("--sample", type=int, default=None, help="mutants of each part; all without it")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--folder", type=Path, default=ROOT / "mutants", help="where the copies lie; is not cleared")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if unknown := sorted(set(options.parts) - set(PARTS)):
        raise SystemExit(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    for part in options.parts or PARTS:
        names = sampled(part, options.sample, options.seed)
        copy = lay_out(part, options.folder / part)
        ended = run(copy, names, options.processes)
        sys.stdout.write(report(part, ended))


def sampled(part: str, count: int | None, seed: int) -> list[str]:
    """Names of the part's mutants, or of `count` of them, drawn by `seed`."""
    source = ROOT / PARTS[part][0]
    names: list[str] = []
    for path in [source] if source.is_file() else sorted(source.rglob("*.py")):
        relative = path.relative_to(ROOT)
        mutated = mutate_file_contents(str(relative), path.read_text(encoding="utf-8"))
        names += [get_mutant_name(relative, name) for name in mutated.mutant_names]
    return names if count is None or count >= len(names) else sorted(random.Random(seed).sample(names, count))


def lay_out(part: str, folder: Path) -> Path:
    """A copy of the tracked files whose configuration has the source and the tests of one part."""
    source, tests = PARTS[part]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    pattern = source if source.endswith(".py") else f"{source}/*"
    own = f"only_mutate = {json.dumps([pattern])}\npytest_add_cli_args_test_selection = {json.dumps(tests)}\n"
    with (folder / "pyproject.toml").open("a", encoding="utf-8") as configuration:
        configuration.write(own)
    return folder


def run(folder: Path, names: list[str], processes: int) -> dict[str, str]:
    """Result of each of these mutants, by its name; raises where mutmut itself failed."""
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(processes), *names]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / "mutmut.log").open("w", encoding="utf-8") as log:
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=log, stderr=subprocess.STDOUT)
    codes: dict[str, int | None] = {}
    for path in (folder / "mutants").rglob("*.meta"):
        codes |= json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
    return {name: status_by_exit_code[codes[name]] for name in names}


def report(part: str, ended: dict[str, str]) -> str:
    """A row of docs/internals/reliability.md, and what was not noticed: `mutmut show NAME` in the copy shows it.

    A mutant that ran out of time was noticed only if it loops, so those are counted apart.
    """
    late = sorted(name for name, status in ended.items() if status == "timeout")
    missed = sorted(name for name, status in ended.items() if status in ("survived", "no tests", "not checked"))
    noticed = len(ended) - len(missed) - len(late)
    low, high = wilson_interval(noticed, len(ended))
    share = f"{noticed / len(ended):.1%} [{low:.1%}, {high:.1%}]"
    row = f"| {part} | {len(ended)} | {noticed} | {len(late)} | {len(missed)} | {share} |\n"
    return row + "".join(f"{ended[name]}: {name}\n" for name in (*missed, *late))


if __name__ == "__main__":
    main()
