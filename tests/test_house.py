"""The shape of the project: sizes, names, and the licence of what is shipped."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter

import grimp
import pytest

from tests import house, places
from tests.house.measures import circles
from tests.places import DESK_MODEL, ROOT

MODULES = [path for folder in ("flows", "tasks", "grpo") for path in sorted((ROOT / folder).rglob("*.py"))]
BOASTS = re.compile(
    r"(advanced|enhanced|ultimate|improved|smart|intelligent|comprehensive|utils|helpers|_v2)", re.IGNORECASE
)


def test_a_module_has_one_noun_and_a_readable_size():
    """At most 400 lines, 90 for a task; no adjective of quality in any name."""
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        lines = text.count("\n")
        assert lines <= (house.LONGEST_TASK if path.parent.name == "grpo_tasks" else house.LONGEST), path
        names = re.findall(r"^\s*(?:def|class) (\w+)", text, flags=re.MULTILINE)
        assert not [name for name in [path.stem, *names] if BOASTS.search(name)], path


def test_the_files_that_begin_a_test_run_are_there():
    """A renamed one would begin last."""
    assert [name for name in places.LONGEST if not (ROOT / name).is_file()] == []


def test_the_embedded_model_is_small_and_safe():
    """At most 8 MB, weights in safetensors, and a card that says where it comes from."""
    files = [path for path in DESK_MODEL.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 8_000_000
    assert {path.suffix for path in files} <= {".json", ".jinja", ".safetensors", ".md"}
    assert (DESK_MODEL / "README.md").is_file()


def test_the_functions_of_catalogs_have_three_verbs():
    """`make_…` from settings, `open_…` by an address, `load_…` from files, so that one name tells the others."""
    functions = [
        (f"{path.parent.name}.{node.name}", ast.unparse(node.returns))
        for path in MODULES
        if path.name == "catalog.py"
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.returns is not None
    ]
    made = re.compile("(?!None|Sequence|Mapping)[A-Z]")
    returned = {name.split(".")[1]: name for name, kind in functions if made.match(kind)}
    assert {"make_agent", "make_environment", "make_reward", "open_policy"} <= returned.keys()
    assert [name for verb, name in returned.items() if not re.match("make_|open_|load_", verb)] == []


def test_no_flow_hides_a_standard_module():
    """A flow may be deployed by its file, whose folder Prefect puts first on the path."""
    names = {path.stem for path in (ROOT / "flows" / "grpo_flows").glob("*.py")}
    assert not names & sys.stdlib_module_names


def test_no_process_imports_from_the_working_folder():
    """`python -m` puts the working folder first on the path, and in /tmp anybody may write; `-P` leaves it out."""
    commands = [
        line.strip()
        for path in MODULES
        for line in path.read_text(encoding="utf-8").splitlines()
        if "[sys.executable" in line
    ]
    assert len(commands) >= 6
    assert [command for command in commands if '[sys.executable, "-P", ' not in command] == []


def test_docstrings_open_with_a_noun_or_a_verb():
    """At most 3 of 100 open with a question word, in the tests as well."""
    asked, total = house.questions(house.sources(folders=(*house.FOLDERS, "tests")))
    assert len(asked) <= house.MOST_QUESTIONS * total, asked


@pytest.mark.parametrize("name", house.WORDS)
def test_literary_words_are_rare(name: str):
    """Names count by their parts."""
    matches, lines = house.uses(house.sources(), house.WORDS[name])
    assert len(matches) <= house.MOST[name] * lines / 10_000, matches


@pytest.mark.parametrize("kind", ["docstrings and comments", "messages"])
def test_prose_is_plain_english(kind: str):
    """Dense words are rare, and conditions and reasons are stated, in the source and in what users read."""
    modules = house.sources()
    if kind == "messages":
        texts = [text for module in house.read_by_people(modules) for text in house.messages(module.tree)]
    else:
        texts = [text for module in modules for text in house.prose(module)]
    rates = house.register(texts)
    conditions = rates.pop("if, when, because, instead of, e.g.")
    assert {name: rate for name, rate in rates.items() if rate > house.MOST_DENSE[name]} == {}
    assert conditions >= house.LEAST_CONDITIONS


def test_messages_are_the_sentences_that_people_read():
    """Neither docstrings, nor names and templates; the values of an f-string count as one word each."""
    module = '''
"""A docstring of a module that has seven words."""
FIELD = 1
"""A docstring of a field that has seven words."""
NAMES = ["two words", "{% if one two three %}"]
raise ValueError(f"{place}: it has {len('a b c d e')} parts; " "leave one out, because two are too many")
log("the stage %s ended", name)
'''
    assert house.messages(ast.parse(module)) == [
        "{}: it has {} parts; leave one out, because two are too many",
        "a b c d e",
        "the stage %s ended",
    ]


def test_the_modules_with_texts_for_models_are_there():
    """A renamed one would be measured as messages."""
    assert [path for path in house.MODEL_TEXTS if not (ROOT / path).exists()] == []


def test_a_variable_is_named_by_what_it_holds():
    """No `found`, `told`, `one` or `said` outside of a comprehension."""
    for path in MODULES:
        assert not house.variables(ast.parse(path.read_text(encoding="utf-8"))) & house.VAGUE, path


def test_a_constant_of_a_module_is_assigned_once():
    """The first value of two would never be used, and its docstring would describe the other one."""
    twice = []
    for path in MODULES:
        body = ast.parse(path.read_text(encoding="utf-8")).body
        targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
        targets += [node.target for node in body if isinstance(node, ast.AnnAssign) and node.value is not None]
        names = Counter(target.id for target in targets if isinstance(target, ast.Name))
        twice += [(path, name) for name, count in names.items() if count > 1]
    assert twice == []


def test_a_coroutine_that_waits_loops_over_a_copy():
    """Python ends a loop over a set or a dictionary that changes with an error, and skips items of a list."""
    loops = [(str(module.path), loop) for module in house.sources() for loop in house.waiting_loops(module.tree)]
    assert loops == []


def test_loops_that_wait_are_read_from_the_source():
    """An attribute is meant, a copy and a local name are not, and neither is a loop that does not wait."""
    module = """
async def look(self, names):
    a = {run for run in self.runs if await self.ended(run)}
    for name, pool in self.pools.items():
        await pool.close()
    for pool in tuple(self.pools.values()):
        await pool.close()
    for name in names:
        await self.ended(name)
    return [run for run in self.runs]
"""
    assert house.waiting_loops(ast.parse(module)) == ["self.pools.items()", "self.runs"]


def test_no_two_modules_import_each_other():
    """No import circle, imports for type checkers included."""
    assert circles(ROOT) == []


def test_what_runs_stages_knows_no_stage():
    """`grpo_tasks.execution` imports from `grpo` and from itself."""
    graph = grimp.build_graph("grpo", "grpo_tasks")
    execution = {"grpo_tasks.execution", *graph.find_descendants("grpo_tasks.execution")}
    imported = {name for module in execution for name in graph.find_modules_directly_imported_by(module)}
    assert sorted(name for name in imported - execution if name.startswith("grpo_tasks")) == []


def test_the_root_of_flows_holds_flows():
    """At most 14 files."""
    assert len(list((ROOT / "flows" / "grpo_flows").glob("*.py"))) <= 14
