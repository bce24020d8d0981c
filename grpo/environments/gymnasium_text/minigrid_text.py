"""Text view of minigrid's worlds: a wrapper with texts as observations and actions.

    go to the green ball. Actions: left, right, forward, pickup, drop, toggle, done. You see: green ball 2 ahead 1 left;
    closed red door 3 right; wall 4 ahead.

A text lists what minigrid's own view of 7 × 7 cells shows. Only the first observation has the mission and the actions,
because the conversation keeps them.

https://minigrid.farama.org, version 3.2
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from typing import Any, SupportsFloat

from grpo.errors import ConfigError, install_command

try:
    import gymnasium
    import minigrid
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, STATE_TO_IDX
    from minigrid.envs.babyai.core import roomgrid_level
    from minigrid.minigrid_env import MiniGridEnv
except ModuleNotFoundError as error:
    raise ConfigError(f"package {error.name} is not installed. Call {install_command('minigrid')}") from error

_log = logging.getLogger(__name__)
_STATES = {index: name for name, index in STATE_TO_IDX.items()}
_HIDDEN = ("unseen", "empty", "wall", "floor", "agent")
_LONGEST = 10_000
"""Most characters of an observation or action, because `gymnasium.spaces.Text` needs a limit."""
_SHOWN = 40
"""Characters of an invalid action that its answer repeats."""

gymnasium.register_envs(minigrid)
# minigrid prints each layout that it rejects, but a command's standard output is for its result
roomgrid_level.print = lambda *values: _log.debug(" ".join(map(str, values)))


class MinigridText(gymnasium.Wrapper[str, str, Any, Any]):
    """Wrapper of a minigrid environment with texts as observations and names of minigrid's actions as actions.

    `info["is_success"]` is True if the mission is complete, that is, if minigrid ended the episode with a reward.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._grid: MiniGridEnv = env.unwrapped
        self.action_names = tuple(action.name for action in self._grid.actions)
        self.observation_space = self.action_space = gymnasium.spaces.Text(_LONGEST)

    def reset(self, **arguments: Any) -> tuple[str, dict[str, Any]]:
        """Start an episode with the mission, the actions and the view."""
        observation, info = self.env.reset(**arguments)
        opening = f"{observation['mission']}. {self._actions()} {describe(observation['image'])}"
        return opening, {**info, "is_success": False}

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take the action of this name. Raises `gymnasium.error.InvalidAction` for another text."""
        name = action.strip().rstrip(".!").casefold()
        if name not in self.action_names:
            raise gymnasium.error.InvalidAction(f"There is no action {name[:_SHOWN]!r}. {self._actions()}")
        observation, reward, terminated, truncated, info = self.env.step(self._grid.actions[name])
        success = bool(terminated and float(reward) > 0)
        return describe(observation["image"]), reward, terminated, truncated, {**info, "is_success": success}

    def state_digest(self) -> str:
        """Digest of cells, position, direction, the carried object, the mission and its completed parts, 16 hex digits.

        The number of steps is not in it, so that an episode is in the same state if it comes back to a place.
        """
        grid = self._grid
        carried = None if grid.carrying is None else grid.carrying.encode()
        parts: tuple[Any, ...] = (
            grid.grid.encode().tolist(),
            [int(place) for place in grid.agent_pos],
            int(grid.agent_dir),
            carried,
            grid.mission,
        )
        completed = list(_completed(getattr(grid, "instrs", None)))
        if any(completed):  # before that the digest is the one of the world, which scenarios name
            parts += (completed,)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def _actions(self) -> str:
        return f"Actions: {', '.join(self.action_names)}."


def _completed(instruction: Any) -> Iterator[bool]:
    """For each part of a mission such as "open A, then go to B", whether it is completed. Nothing for one action."""
    for part in ("a", "b"):
        if hasattr(instruction, f"instr_{part}"):
            yield getattr(instruction, f"{part}_done") == "success"
            yield from _completed(getattr(instruction, f"instr_{part}"))


def describe(image: Any) -> str:
    """Describe minigrid's view in words, the nearest object first.

    `image` is [columns, rows, (object, colour, state)]. The agent looks along the rows from the middle of the last row.
    That cell holds the object that it carries.

        green ball at column 2, row 4 of 7 × 7    green ball 2 ahead 1 left
    """
    columns, rows, _ = image.shape
    middle, last = columns // 2, rows - 1
    seen: list[tuple[int, int, str]] = []
    carried = ""
    for column, row, name in _objects(image):
        ahead, right = last - row, column - middle
        if not ahead and not right:
            carried = f" You carry: {name}."
        else:
            seen.append((ahead + abs(right), right, f"{name} {_place(ahead, right)}"))
    parts = [text for _, _, text in sorted(seen)]
    wall = next((last - row for row in range(last, -1, -1) if IDX_TO_OBJECT[image[middle, row, 0]] == "wall"), None)
    if wall is not None:
        parts.append(f"wall {wall} ahead")
    return f"You see: {'; '.join(parts) or 'nothing'}.{carried}"


def _objects(image: Any) -> Iterator[tuple[int, int, str]]:
    """Yield column, row and name of each object. The name of a door has its state."""
    for column, cells in enumerate(image.tolist()):
        for row, (kind, colour, state) in enumerate(cells):
            name = IDX_TO_OBJECT[kind]
            if name not in _HIDDEN:
                prefix = f"{_STATES[state]} " if name == "door" else ""
                yield column, row, f"{prefix}{IDX_TO_COLOR[colour]} {name}"


def _place(ahead: int, right: int) -> str:
    parts = [f"{ahead} ahead"] if ahead else []
    if right:
        parts.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
    return " ".join(parts)
