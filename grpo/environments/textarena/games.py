"""Single-player games of TextArena, each with random numbers of its own.

TextArena's games draw from Python's module `random` and seed it for the whole process, so that two games at once would
change each other's cards, and every other part of the process that draws. Here the games' modules get a stand-in
instead of the module. It draws from the stream of the game that is being played, which is copied with the game.

    game A  seed 7    random.seed(7)   randint   …        randint      the same numbers as in a process of its own,
    game B  seed 9             random.seed(9)   choice …         …     whichever turns come between

A game is listed in `GAMES` if it has one player, starts offline without data of NLTK or a model, and gives reward 1 to
a win and less to anything else. Tests compare each with TextArena itself. None of them evaluates an action as Python.

https://github.com/LeonGuertler/TextArena, version 0.7
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import logging
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from grpo.environments.text_game import GameTurn, NoWorldError, TextGame
from grpo.errors import ConfigError, DataError, install_command

try:
    import textarena
    from textarena.envs.registration import ENV_REGISTRY
    from textarena.wrappers import ActionFormattingWrapper
except ModuleNotFoundError as error:
    raise ConfigError(f"package {error.name} is not installed. Call {install_command('textarena')}") from error

_log = logging.getLogger(__name__)

GAMES: Mapping[str, bool] = {
    "Blackjack": True,
    "FrozenLake": False,
    "GuessTheNumber": False,
    "LightsOut": False,
    "Mastermind": False,
    "Minesweeper": True,
    "Secretary": False,
    "Sudoku": False,
    "ThreeCardMonte": False,
}
"""Games that can be played, and whether they draw random numbers after the start."""
_VERSION = "-v0"
_MAX_DIGITS = 400
"""Most digits of a number in an action. Python refuses to convert 4,300, which would fail the episode."""
_COUNTERS = ("moves_made",)
"""Numbers of turns in a game's state, which are not part of its digest."""

_stream: ContextVar[random.Random | None] = ContextVar("stream", default=None)


class _EpisodeRandom:
    """Stand-in for the module `random`: draws from the stream of the game that is being played, if there is one."""

    def __getattr__(self, name: str) -> Any:
        stream = _stream.get()
        return getattr(stream if hasattr(stream, name) else random, name)


_EPISODE_RANDOM = _EpisodeRandom()


class ArenaGame(TextGame):
    """A game of TextArena after its start."""

    def __init__(self, game: str, options: Mapping[str, Any], seed: int) -> None:
        """Make the game and start it.

        Raises `DataError` if the game is not in `GAMES` or cannot be made with these options.
        """
        name = family(game)
        _isolate(ENV_REGISTRY[game].entry_point.partition(":")[0])
        self._stream = random.Random()
        self._draws = GAMES[name]
        try:
            with _drawing_from(self._stream):
                self._env = ActionFormattingWrapper(textarena.make(f"{game}-raw", **options))
                self._env.reset(num_players=1, seed=seed)
        except ZeroDivisionError:  # Lights Out divides by the number of lights that are on at the start
            raise NoWorldError(f"game {game} of TextArena makes no puzzle of seed {seed}. Take another seed") from None
        except (TypeError, ValueError, AssertionError, IndexError) as error:
            raise DataError(f"game {game} of TextArena cannot be made with options {dict(options)}: {error}") from error
        self.opening = self._unread()

    def step(self, action: str) -> GameTurn:
        """Take the action as TextArena does, which adds missing brackets. Its reward comes with the end."""
        if any(len(number) > _MAX_DIGITS for number in _numbers(action)):
            return GameTurn(text=f"That is not an action: it has a number of more than {_MAX_DIGITS} digits.")
        with _drawing_from(self._stream):
            over, _ = self._env.step(action)
        if not over:
            return GameTurn(text=self._unread())
        return GameTurn(text="", reward=self._reward, over=True)

    @property
    def success(self) -> bool:
        """True if the game ended with reward 1."""
        return self._env.state.rewards is not None and self._reward >= 1

    def state_digest(self) -> str:
        """Digest of the opening, the game's state and its allowance of invalid moves, 16 hex digits.

        If the game draws random numbers later, the stream is part of it.
        """
        game, state = self.env, self._env.state
        parts = (
            self.opening,
            {name: value for name, value in vars(game).items() if name != "state"},
            {name: value for name, value in state.game_state.items() if name not in _COUNTERS},
            state.error_count,
            state.rewards,
            self._stream.getstate() if self._draws else None,
        )
        return hashlib.sha256(repr(_plain(parts)).encode()).hexdigest()[:16]

    @property
    def env(self) -> Any:
        """TextArena's object."""
        return self._env.env

    @property
    def _reward(self) -> float:
        """Reward of a game that has ended. It is 0 if TextArena has swapped it with the reason of an invalid move."""
        reward = self._env.state.rewards[0]
        return float(reward) if isinstance(reward, (int, float)) else 0.0

    def _unread(self) -> str:
        """Messages that the player has not read yet, without its own."""
        _, messages = self._env.get_observation()
        own = textarena.ObservationType.PLAYER_ACTION
        return "\n".join(text.strip() for _, text, kind in messages if kind != own)


def _numbers(text: str) -> list[str]:
    return "".join(character if character.isdecimal() else " " for character in text).split()


def family(game: str) -> str:
    """Name of a game without its version. Raises `DataError` if the game cannot be played here."""
    name, version, _ = game.partition(_VERSION)
    if not version or name not in GAMES:
        raise DataError(
            f"game {game!r:.60} of TextArena is refused: it needs other players, a model, downloaded words, or has the "
            f"same puzzle in every episode. Take one of {', '.join(sorted(GAMES))} with its version, such as "
            "GuessTheNumber-v0"
        )
    if f"{game}-raw" not in ENV_REGISTRY:
        versions = [id.removesuffix("-raw") for id in ENV_REGISTRY if id.startswith(name) and id.endswith("-raw")]
        raise DataError(f"TextArena has no game {game!r:.60}. Take one of {', '.join(versions)}")
    return name


@contextmanager
def _drawing_from(stream: random.Random) -> Iterator[None]:
    """Let TextArena's modules draw from this stream in this context."""
    token = _stream.set(stream)
    try:
        yield
    finally:
        _stream.reset(token)


@functools.cache
def _isolate(module: str) -> None:
    """Import a game, and put the stand-in into all modules of TextArena that draw."""
    importlib.import_module(module).print = _log_debug  # type: ignore[attr-defined]
    for name, loaded in list(sys.modules.items()):
        if name.partition(".")[0] == textarena.__name__ and isinstance(getattr(loaded, "random", None), ModuleType):
            loaded.random = _EPISODE_RANDOM  # type: ignore[attr-defined]


def _log_debug(*values: object) -> None:
    """Stand-in for `print` in the games, because a command's standard output is for its result."""
    _log.debug(" ".join(map(str, values)))


def _plain(value: Any) -> Any:
    """Value with sets and keys in order, so that equal values have equal texts. Other objects are left out."""
    if isinstance(value, Mapping):
        return sorted((repr(key), _plain(item)) for key, item in value.items())
    if isinstance(value, set):
        return sorted(repr(_plain(item)) for item in value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float)) else None
