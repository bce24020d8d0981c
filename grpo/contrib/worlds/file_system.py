"""File system of BFCL: one folder is current, and names are relative to it.

    state   {"root": {name: {"type": "directory", "contents": {…}}}, "_path": [names below the first root]}

https://github.com/ShishirPatil/gorilla, Apache-2.0 (the tasks)
"""

from __future__ import annotations

import copy
from typing import Any

from grpo.agents.tools import ToolError
from grpo.environments.world import State, World

Node = dict[str, Any]
_BAD_NAME = frozenset('|/\\?%*:"><')
_UNITS = {"l": "lines", "w": "words", "c": "characters"}


def _init_state(state: State) -> State:
    """Start in the first folder under root."""
    if not state.get("root"):
        state = {**state, "root": {"workspace": {"type": "directory", "contents": {}}}}
    return {**state, "_path": []}


def _top(state: State) -> tuple[str, Node]:
    """Top folder. Other folders on its level cannot be reached."""
    return next(iter(state["root"].items()))


def _open(state: State) -> dict[str, Node]:
    """Contents of the current folder."""
    _, node = _top(state)
    for name in state["_path"]:
        node = node["contents"][name]
    contents: dict[str, Node] = node["contents"]
    return contents


def _file(state: State, name: str, tool: str) -> Node:
    node = _open(state).get(name)
    if node is None:
        raise ToolError(f"{tool}: {name}: No such file or directory")
    if node["type"] != "file":
        raise ToolError(f"{tool}: {name}: Is a directory")
    return node


def _check_name(name: str, tool: str) -> None:
    if not name or _BAD_NAME & set(name):
        raise ToolError(f"{tool}: '{name}': Invalid character")


def pwd(state: State) -> tuple[State, Any]:
    """Path of the current folder."""
    return state, {"current_working_directory": "/" + "/".join((_top(state)[0], *state["_path"]))}


def ls(state: State, a: bool = False) -> tuple[State, Any]:
    """List names in the current folder."""
    return state, {"current_directory_content": [name for name in _open(state) if a or not name.startswith(".")]}


def cd(state: State, folder: str) -> tuple[State, Any]:
    """Change to a subfolder or to the parent."""
    folder = folder.rstrip("/")
    if folder == "..":
        if not state["_path"]:
            raise ToolError("cd: ..: this is the root already")
        state["_path"].pop()
    elif folder not in (".", ""):
        node = _open(state).get(folder)
        if node is None or node["type"] != "directory":
            raise ToolError(f"cd: {folder}: No such directory. You cannot use a path to change directory.")
        state["_path"].append(folder)
    else:
        state["_path"] = state["_path"] if folder else []
    return state, {"current_working_directory": [_top(state)[0], *state["_path"]][-1]}


def mkdir(state: State, dir_name: str) -> tuple[State, Any]:
    """Make a folder."""
    return _make(state, dir_name, {"type": "directory", "contents": {}}, "mkdir")


def touch(state: State, file_name: str) -> tuple[State, Any]:
    """Make an empty file."""
    return _make(state, file_name, {"type": "file", "content": ""}, "touch")


def _make(state: State, name: str, node: Node, tool: str) -> tuple[State, Any]:
    _check_name(name, tool)
    if name in _open(state):
        raise ToolError(f"{tool}: '{name}': File exists")
    _open(state)[name] = node
    return state, None


def echo(state: State, content: str, file_name: str | None = None) -> tuple[State, Any]:
    """Write into an existing file, or show the content."""
    if file_name in (None, "", "None"):
        return state, {"terminal_output": content}
    _file(state, file_name, "echo")["content"] = content
    return state, None


def cat(state: State, file_name: str) -> tuple[State, Any]:
    """Show a file."""
    return state, {"file_content": _file(state, file_name, "cat")["content"]}


def find(state: State, path: str = ".", name: str | None = None) -> tuple[State, Any]:
    """Find paths below a folder whose name contains `name`."""
    contents = _open(state)
    for step in path.rstrip("/").split("/"):
        if step not in ("", "."):
            node = contents.get(step)
            if node is None or node["type"] != "directory":
                raise ToolError(f"find: {path}: No such directory")
            contents = node["contents"]
    matches: list[str] = []

    def look(inside: dict[str, Node], place: str) -> None:
        for key, node in inside.items():
            if name in (None, "None") or name in key:
                matches.append(f"{place}/{key}")
            if node["type"] == "directory":
                look(node["contents"], f"{place}/{key}")

    look(contents, path.rstrip("/"))
    return state, {"matches": matches}


def wc(state: State, file_name: str, mode: str = "l") -> tuple[State, Any]:
    """Count lines, words or characters."""
    if mode not in _UNITS:
        raise ToolError(f"wc: invalid mode '{mode}'; use one of {', '.join(_UNITS)}")
    content = _file(state, file_name, "wc")["content"]
    counts = {"l": len(content.splitlines()), "w": len(content.split()), "c": len(content)}
    return state, {"count": counts[mode], "type": _UNITS[mode]}


def sort(state: State, file_name: str) -> tuple[State, Any]:
    """Show the sorted lines of a file."""
    lines = sorted(_file(state, file_name, "sort")["content"].splitlines())
    return state, {"sorted_content": "\n".join(lines)}


def grep(state: State, file_name: str, pattern: str) -> tuple[State, Any]:
    """Show lines that contain the pattern."""
    lines = _file(state, file_name, "grep")["content"].splitlines()
    return state, {"matching_lines": [line for line in lines if pattern in line]}


def tail(state: State, file_name: str, lines: int = 10) -> tuple[State, Any]:
    """Show the last lines of a file."""
    content = _file(state, file_name, "tail")["content"].splitlines()
    return state, {"last_lines": "\n".join(content[max(0, len(content) - lines) :])}


def diff(state: State, file_name1: str, file_name2: str) -> tuple[State, Any]:
    """Show lines with the same number that differ."""
    first, second = (_file(state, name, "diff")["content"].splitlines() for name in (file_name1, file_name2))
    pairs = zip(first, second, strict=False)
    return state, {"diff_lines": "\n".join(f"- {left}\n+ {right}" for left, right in pairs if left != right)}


def du(state: State, human_readable: bool = False) -> tuple[State, Any]:
    """Sum of bytes in the current folder and below."""

    def size(inside: dict[str, Node]) -> int:
        return sum(
            len(node["content"].encode()) if node["type"] == "file" else size(node["contents"])
            for node in inside.values()
        )

    total: float = size(_open(state))
    if not human_readable:
        return state, {"disk_usage": f"{total} bytes"}
    unit = "B"
    for larger in ("KB", "MB", "GB"):
        if total >= 1024:
            total, unit = total / 1024, larger
    return state, {"disk_usage": f"{total:.2f} {unit}"}


def mv(state: State, source: str, destination: str) -> tuple[State, Any]:
    """Move into a folder, or rename."""
    state, place = _put(state, source, destination, "mv")
    del _open(state)[source]
    return state, {"result": f"'{source}' moved to '{place}'"}


def cp(state: State, source: str, destination: str) -> tuple[State, Any]:
    """Copy into a folder, or to another name."""
    state, place = _put(state, source, destination, "cp")
    return state, {"result": f"'{source}' copied to '{place}'"}


def _put(state: State, source: str, destination: str, tool: str) -> tuple[State, str]:
    """Copy the source to its destination."""
    here = _open(state)
    if source not in here:
        raise ToolError(f"{tool}: '{source}': No such file or directory")
    target = here.get(destination)
    if target is None:
        _check_name(destination, tool)
        here[destination] = copy.deepcopy(here[source])
        return state, destination
    if target["type"] != "directory" or destination == source:
        raise ToolError(f"{tool}: '{source}' to '{destination}': Not a directory")
    if source in target["contents"]:
        raise ToolError(f"{tool}: '{source}' to '{destination}/{source}': File exists")
    target["contents"][source] = copy.deepcopy(here[source])
    return state, f"{destination}/{source}"


def rm(state: State, file_name: str) -> tuple[State, Any]:
    """Remove a file or folder."""
    if _open(state).pop(file_name, None) is None:
        raise ToolError(f"rm: '{file_name}': No such file or directory")
    return state, {"result": f"'{file_name}' removed"}


def rmdir(state: State, dir_name: str) -> tuple[State, Any]:
    """Remove an empty folder."""
    node = _open(state).get(dir_name)
    if node is None or node["type"] != "directory":
        raise ToolError(f"rmdir: '{dir_name}': No such directory")
    if node["contents"]:
        raise ToolError(f"rmdir: '{dir_name}': Directory not empty")
    del _open(state)[dir_name]
    return state, {"result": f"'{dir_name}' removed"}


FILE_SYSTEM = World(
    state_key="GorillaFileSystem",
    init_state=_init_state,
    verify_results=True,
    functions={
        f.__name__: f
        for f in (
            pwd, ls, cd, mkdir, touch, echo, cat, find, wc, sort, grep, tail, diff, du, mv, cp, rm, rmdir,
        )
    },
)  # fmt: skip
