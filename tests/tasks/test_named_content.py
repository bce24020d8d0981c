"""Every setting of every stage that names a file, a model or code: what it names is in the stage's identity.

The fields are found in the types of the stages' parameters. A new setting that names something fails here until its
class is in `SETTINGS`, or the reason why its content does not count is in `NOT_INPUTS`.
"""

from __future__ import annotations

import importlib
import pkgutil
import shutil
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import BaseModel

import grpo_tasks
from grpo.config.base import ByContent, ModelMark, marks_of
from grpo.config.pipeline import PipelineConfig, PolicySettings
from grpo.config.retraining import RetrainConfig
from grpo.identity.cache_identity import model_digest, stage_key
from grpo.identity.user_code import user_code_digests
from grpo.log import LoggedConversation, append
from grpo.messages import Message
from grpo.scenarios.sources import SOURCES, content_hash
from grpo.storage.shipped import shipped_folder
from grpo_tasks.execution.stage import Stage

NOT_INPUTS = {
    "PipelineConfig.store": "written to; artifacts count by their digests",
    "PipelineConfig.import_from": "the modules in it count one by one",
    "RetrainConfig.import_from": "the modules in it count one by one",
    "RetrainConfig.pipeline": "the settings that are read from it count",
    "JudgeSettings.folder": "answers of the judge by the whole request, and the ledger of costs",
    "JudgeSettings.model": "an address of a server; what it answers cannot be seen",
}
SUSPICIOUS = ("path", "file", "folder", "model", "template", "object")
"""Parts of the names of fields that may name a file although their type does not say so."""
NO_NAMES = {
    "RegistrySettings.model_name": "a name in the registry",
    "PolicySettings.chat_template": "the template's text",
    "DistillationSettings.teacher_prompt_template": "the template's text",
    "MustPassGate.scenarios": "ids, which the config holds",
}
FOLDERS = {
    "HuggingFaceSource": "train/data.arrow",
    "MultiDoGOSource": "turn/finance/train.tsv",
    "Tau2Source": "retail/tasks.json",
    "PublishedSource": "abcd_sample.json",
}
"""File in the folder that these sources name."""
LOG, CODE, FILE, WEIGHTS = "log", "code", "file", "weights"
SETTINGS: dict[str, dict[str, Any]] = {
    "FileSource": {"kind": "jsonl"},
    "CsvSource": {"kind": "csv"},
    "HuggingFaceSource": {"kind": "huggingface", "split": "train"},
    "ChatSource": {"kind": "openai_messages"},
    "TraceSource": {"kind": "langsmith"},
    "HelpDeskSource": {"kind": "zendesk"},
    "MultiDoGOSource": {"kind": "multidogo", "domains": ["finance"], "parts": ["train"]},
    "Tau2Source": {"kind": "tau2_bench", "domain": "retail", "tasks": "tasks.json"},
    "PublishedSource": {"kind": "abcd_sample"},
    "PythonSource": {"kind": "python", "object": "named_code:make"},
    "RendererSettings": {"kind": "python", "object": "named_code:make"},
    "PythonAgentSettings": {"kind": "python", "object": "named_code:make"},
    "PythonEnvironmentSettings": {"kind": "python", "object": "named_code:make"},
    "TRLEnvironmentSettings": {"kind": "trl", "object": "named_code:make"},
    "GymEnvironmentSettings": {"kind": "gym", "object": "named_code:make"},
    "GeneratedDemonstrations": {"kind": "python", "object": "named_code:make"},
    "PythonGate": {"kind": "python", "object": "named_code:make"},
    "RewardComponent": {"kind": "python", "object": "named_code:make", "weight": 1.0},
    "VerifiersSource": {"kind": "verifiers", "id": "named_code"},
    "VerifiersSettings": {"kind": "verifiers", "id": "named_code"},
    "SimulatedUserSettings": {"kind": "simulated_user"},
    "TaskSettings": {"kind": "task"},
    "WrittenDemonstrations": {"kind": "jsonl"},
    "WrittenPairs": {"kind": "jsonl"},
    "SafetyGate": {"kind": "safety"},
    "ServedSource": {"kind": "served"},
    "ServedDemonstrations": {"kind": "served", "licences": ["x"]},
    "ServedPairs": {"kind": "served", "licences": ["x"]},
    "PolicySettings": {},
    "DistillationSettings": {},
}


def _models(annotation: Any, seen: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """Classes of settings in a type, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in seen:
        seen.add(annotation)
        yield annotation
        for field in annotation.model_fields.values():
            yield from _models(field.annotation, seen)
    for part in get_args(annotation):
        yield from _models(part, seen)


def _stages() -> list[Stage[..., Any]]:
    modules = [importlib.import_module(f"grpo_tasks.{info.name}") for info in pkgutil.iter_modules(grpo_tasks.__path__)]
    return [value for module in modules for value in vars(module).values() if isinstance(value, Stage)]


def _classes() -> list[type[BaseModel]]:
    """Settings of all stages and runs."""
    seen: set[type[BaseModel]] = set()
    hints = [get_type_hints(stage.function) for stage in _stages()]
    inputs = [hint for of_stage in hints for name, hint in of_stage.items() if name != "return"]
    return [kind for hint in (*inputs, PipelineConfig, RetrainConfig) for kind in _models(hint, seen)]


def _named(kind: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Fields that name a file, a model or code, and what they name."""
    for name in kind.model_fields:
        marks = marks_of(kind, name)
        if any(isinstance(mark, ByContent) for mark in marks):
            yield name, LOG if kind.__name__.startswith("Served") else FILE
        elif any(isinstance(mark, ModelMark) for mark in marks):
            yield name, WEIGHTS
        elif name == "object" or (name == "id" and hasattr(kind, "reference")):
            yield name, CODE


CASES = [
    pytest.param(kind, name, what, id=f"{kind.__name__}.{name}")
    for kind in _classes()
    for name, what in _named(kind)
    if f"{kind.__name__}.{name}" not in NOT_INPUTS
]


def test_no_setting_names_a_file_without_saying_so():
    """Each field with a suspicious name has a type that says what it names, or a reason."""
    marked = {f"{kind.__name__}.{name}" for kind in _classes() for name, _ in _named(kind)}
    suspicious = {
        f"{kind.__name__}.{name}"
        for kind in _classes()
        if kind.__module__.startswith("grpo.config")
        for name, field in kind.model_fields.items()
        if any(word in name for word in SUSPICIOUS) and "str" in str(field.annotation)
    }
    assert suspicious - marked - set(NO_NAMES) - set(NOT_INPUTS) == set()


def test_every_stage_with_sources_takes_the_digest_of_their_content():
    """A source's files are not digested with its settings, because there may be thousands."""
    for stage in _stages():
        hints = get_type_hints(stage.function)
        settings = [hint for name, hint in hints.items() if hint is not PipelineConfig and name != "return"]
        takes_sources = any(kind in SOURCES for hint in settings for kind in _models(hint, set()))
        assert "content" in hints or not takes_sources, stage.name


@pytest.mark.parametrize(("kind", "name", "what"), CASES)
def test_changing_what_a_setting_names_changes_the_key(
    kind: type[BaseModel], name: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One character more in the file, module, log or weights: another key. The same content elsewhere: the same key."""
    monkeypatch.syspath_prepend(tmp_path)
    _write_code(tmp_path, "1")
    first, moved, changed = (KEYS[what](kind, name, tmp_path / folder, content) for folder, content in _CONTENTS)
    assert first != changed
    assert first == moved or what == LOG  # ids of two logs differ


_CONTENTS = (("a", "1"), ("b", "1"), ("a", "22"))
Key = Callable[[type[BaseModel], str, Path, str], str]


def _key(kind: type[BaseModel], **named: Any) -> str:
    settings = kind.model_validate({**SETTINGS[kind.__name__], **named})
    inputs: dict[str, Any] = {"settings": settings}
    if kind in SOURCES:
        inputs["content"] = content_hash((settings,))  # type: ignore[arg-type]
    if isinstance(settings, PolicySettings):
        inputs["content"] = model_digest(settings)
    return stage_key("stage", inputs)


def _key_of_file(kind: type[BaseModel], name: str, folder: Path, content: str) -> str:
    below = FOLDERS.get(kind.__name__)
    file, other = folder / (below or "named.jsonl"), folder / "other.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    other.write_text("the same")
    needs = {"path": str(other)} if "path" in kind.model_fields else {}
    value: Any = str(file if below is None else folder)
    value = (value,) if name == "reads" else value
    return _key(kind, **{**needs, name: value})


def _write_code(root: Path, content: str) -> None:
    user_code_digests.cache_clear()  # a process keeps them, as it keeps the modules
    sys.modules.pop("named_code", None)
    (root / "named_code.py").write_text(f"def make():\n    return {content}\n\n\nTaskset = make\n")
    importlib.invalidate_caches()


def _key_of_code(kind: type[BaseModel], name: str, folder: Path, content: str) -> str:
    _write_code(folder.parent, content)
    return _key(kind)


def _key_of_log(kind: type[BaseModel], name: str, folder: Path, content: str) -> str:
    messages = (Message(role="user", content="hello"), Message(role="assistant", content=content))
    time = datetime(2026, 1, 1, tzinfo=UTC)
    append(folder, [LoggedConversation(id=content, time=time, model="clerk/1", messages=messages)])
    return _key(kind, **{name: str(folder)})


def _key_of_weights(kind: type[BaseModel], name: str, folder: Path, content: str) -> str:
    """Of a folder with weights, and, for a simulated user, of a script."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(shipped_folder() / "models" / "desk_clerk", folder)
    (folder / "chat_template.jinja").write_text(content)
    (folder / "replies.yaml").write_text(f"- {content}\n")
    keys = [_key(kind, **{name: str(folder)})]
    if kind is not PolicySettings:
        keys += [
            _key(kind, **{name: f"{address}"}) for address in (f"vllm://{folder}", f"stub://{folder / 'replies.yaml'}")
        ]
    return " ".join(keys)


KEYS: dict[str, Key] = {FILE: _key_of_file, CODE: _key_of_code, LOG: _key_of_log, WEIGHTS: _key_of_weights}
