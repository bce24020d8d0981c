"""Tasks of the package `verifiers` as scenarios.

https://github.com/PrimeIntellect-ai/verifiers, version 0.4
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from grpo.errors import ConfigError, DataError, install_command
from grpo.messages import Message
from grpo.scenario import Metadata, Scenario
from grpo.scenarios.records import SourceRecord

try:
    import verifiers.v1 as vf
    from verifiers.v1.envs.single_agent import (
        SingleAgentEnv,
    )
    from verifiers.v1.types import content_text
    from verifiers.v1.utils.loaders import (
        environment_class,
        taskset_config_type,
    )
except ModuleNotFoundError as error:
    raise ConfigError(f"package {error.name} is not installed. Call {install_command('verifiers')}") from error

_ROLES = ("system", "user", "assistant")


def make_taskset(id: str, args: Mapping[str, Any]) -> vf.Taskset[Any, Any]:
    """Make a taskset from its id and its settings.

    Raises `ConfigError` if the taskset is missing, has a program of its own, or does not take these settings.
    """
    try:
        program = environment_class(id)
        config = taskset_config_type(id).model_validate({**args, "id": id})
        taskset = vf.load_taskset(config)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(["args", *map(str, problem["loc"])])
        raise ConfigError(f"taskset {id}: {place}: {problem['msg']}") from error
    except Exception as error:
        raise ConfigError(
            f"taskset {id} cannot be loaded ({type(error).__name__}: {error}). Install its package, or put its module "
            "into the config's folder"
        ) from error
    if program is not SingleAgentEnv:
        raise ConfigError(
            f"taskset {id} has a program of its own, {program.__name__}, which needs that package's agents and is not "
            "supported. Use a taskset with episodes of replies and tool calls"
        )
    return taskset


def read_taskset(id: str, args: Mapping[str, Any]) -> Iterator[SourceRecord]:
    """Read the tasks of a taskset in its order. Raises `ConfigError` if it is endless."""
    for number, task in enumerate(bounded(make_taskset(id, args)), start=1):
        try:
            data, problem = task_scenario(task).model_dump(mode="json", exclude_defaults=True), None
        except DataError as error:
            data, problem = None, str(error)
        raw = "" if data else str(task.data)[:500]
        yield SourceRecord(source=id, line=number, data=data, raw=raw, problem=problem)


def bounded(taskset: vf.Taskset[Any, Any]) -> vf.Taskset[Any, Any]:
    """Return the taskset itself. Raises `ConfigError` if it is endless."""
    if not taskset.bounded:
        raise ConfigError(f"taskset {type(taskset).__name__} is endless. Bound it by take(n)")
    return taskset


def task_id(task: vf.Task[Any, Any, Any]) -> str:
    """Id of the task's scenario."""
    return f"verifiers-{task.data.id or task.data.idx}"


def task_scenario(task: vf.Task[Any, Any, Any]) -> Scenario:
    """Scenario of a task. Raises `DataError` if its prompt does not end with a text of the user."""
    messages = task_prompt(task)
    return Scenario(
        id=task_id(task),
        user_responses=(messages[-1].content,),
        context="\n\n".join(message.content for message in messages if message.role == "system"),
        metadata=Metadata(source="verifiers"),
    )


def task_prompt(task: vf.Task[Any, Any, Any]) -> list[Message]:
    """Messages of the task, with the system prompt first and the user's message last."""
    given = task.data.prompt
    if isinstance(given, str):
        messages = [Message(role="user", content=given)]
    else:
        messages = [Message(role=message.role, content=content_text(message.content) or "") for message in given or []]
    if task.data.system_prompt:
        messages.insert(0, Message(role="system", content=task.data.system_prompt))
    if not messages or messages[-1].role != "user" or any(m.role not in _ROLES for m in messages):
        raise DataError(f"task {task_id(task)}: the prompt must end with the user's message and hold no tools")
    if not isinstance(given, str) and any(not isinstance(m.content, str) for m in given or []):
        raise DataError(f"task {task_id(task)}: the prompt holds more than text")
    return messages
