"""Text adventures that TextWorld's makers generate, with its rules and quests, and a text view of their worlds.

TextWorld writes the prose of a game in Inform 7, and to compile it takes seconds, which is too slow for hundreds of
games. This module therefore skips the compiler and replaces only the prose: `describe` lists what is in the room, as
`MinigridText` lists minigrid's view. The objective, the names, the admissible commands, the end and the score are
TextWorld's. A test compares them with TextWorld's own environment.

    You are in the attic. You see: closed chest; table (on it: brass key). Exits: north (locked oak door), east.
    You carry: lamp.

https://github.com/microsoft/TextWorld, version 1.7
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Self

from grpo.environments.text_game import GameTurn, NoWorldError, TextGame
from grpo.errors import ConfigError, DataError, install_command

try:
    import textworld
    from textworld.challenges.tw_treasure_hunter import treasure_hunter
    from textworld.generator import GameOptions, KnowledgeBase, QuestGenerationError, make_game
    from textworld.generator.game import Game, GameProgression
except ModuleNotFoundError as error:
    raise ConfigError(f"package {error.name} is not installed. Call {install_command('textworld')}") from error

MAKERS: Mapping[str, tuple[str, ...]] = {
    "treasure_hunter": ("level",),
    "quest": ("nb_rooms", "nb_objects", "quest_length"),
}
"""TextWorld's makers and their options. `quest` is the maker behind `tw-make custom`.

The others are left out: Coin Collector compiles each game to test its walkthrough, the Cooking Game tells its recipe in
Inform 7 only, and the Simple Game has one map.
"""
_IDLE = ("examine", "inventory", "look")
"""Commands that change nothing, and whose answers the view gives each turn."""
_OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
_SHOWN = 40
"""Characters of an invalid command that its answer repeats."""
_making = threading.Lock()

# TextWorld parses the same rules for each game, which is nine tenths of the time that a game takes to make
KnowledgeBase.load = functools.cache(KnowledgeBase.load)


class TextWorldGame(TextGame):
    """A generated game after its start."""

    def __init__(self, maker: str, options: Mapping[str, Any], seed: int) -> None:
        """Make the game. Raises `DataError` if the maker is not in `MAKERS` or refuses the options."""
        self._game = _make(maker, json.dumps(dict(options), sort_keys=True), seed)
        self._progress = GameProgression(self._game)
        self.opening = f"{self._game.objective.strip()} {self._commands()} {describe(self._game, self._facts)}"

    def step(self, action: str) -> GameTurn:
        """Take the command, or say what can be done if it is not admissible. The reward is the share of the score."""
        command = " ".join(action.split()).rstrip(".!").casefold()
        actions = self.admissible()
        if command not in actions:
            return GameTurn(text=f"You cannot {command[:_SHOWN]!r} here. {self._commands()}")
        before = self._progress.score
        self._progress.update(actions[command])
        reward = (self._progress.score - before) / self._game.max_score
        return GameTurn(text=describe(self._game, self._facts), reward=reward, over=self._progress.done)

    @property
    def success(self) -> bool:
        """True if all quests are completed."""
        completed: bool = self._progress.completed
        return completed

    def state_digest(self) -> str:
        """Digest of the objective, the names, the facts and the completed quests, 16 hex digits."""
        names = sorted((id, info.name) for id, info in self._game.infos.items())
        quests = [quest.nb_completions for quest in self._progress.quest_progressions]
        parts = (self._game.objective, names, sorted(map(str, self._facts)), quests, self._progress.done)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def copied(self) -> Self:
        """Copy with TextWorld's own copy of the progress. Both share the game, because playing does not change it."""
        twin = object.__new__(type(self))
        twin.opening, twin._game, twin._progress = self.opening, self._game, self._progress.copy()
        return twin

    def admissible(self) -> dict[str, Any]:
        """TextWorld's actions that are possible now, by their commands in order."""
        names = {id: info.name for id, info in self._game.infos.items()}
        actions = {action.format_command(names).casefold(): action for action in self._progress.valid_actions}
        return dict(sorted(actions.items()))

    @property
    def walkthrough(self) -> list[str]:
        """TextWorld's own commands that complete the game."""
        return list(self._game.walkthrough)

    @property
    def _facts(self) -> list[Any]:
        return list(self._progress.state.facts)

    def _commands(self) -> str:
        commands = [command for command in self.admissible() if not command.startswith(_IDLE)]
        return f"You can: {', '.join(commands)}."


def describe(game: Game, facts: list[Any]) -> str:
    """Describe the room of the player in words: its things, its exits, and what the player carries."""

    def name(entity: Any) -> str:
        return str(game.infos[entity.name].name)

    def state(entity: Any) -> str:
        """Open, closed or locked, with a space after it. Empty for an entity that is none of them."""
        states = ("open", "closed", "locked")
        return next((f"{fact.name} " for fact in facts if fact.name in states and fact.arguments == (entity,)), "")

    def inside(relation: str, place: Any) -> list[str]:
        return sorted(name(fact.arguments[0]) for fact in facts if fact.name == relation and fact.arguments[1] == place)

    def thing(entity: Any) -> str:
        content = inside("in", entity) if state(entity) == "open " else []
        parts = [
            f"{word} it: {', '.join(names)}" for word, names in (("in", content), ("on", inside("on", entity))) if names
        ]
        return f"{state(entity)}{name(entity)}" + (f" ({'; '.join(parts)})" if parts else "")

    room = next(fact.arguments[1] for fact in facts if fact.name == "at" and fact.arguments[0].type == "P")
    things = (fact.arguments[0] for fact in facts if fact.name == "at" and fact.arguments[1] == room)
    seen = sorted(thing(entity) for entity in things if entity.type != "P")
    doors = {
        fact.arguments[2]: fact.arguments[1] for fact in facts if fact.name == "link" and fact.arguments[0] == room
    }
    exits = [
        direction + (f" ({state(doors[beyond])}{name(doors[beyond])})" if beyond in doors else "")
        for direction, beyond in sorted(_exits(facts, room))
    ]
    carried = sorted(name(fact.arguments[0]) for fact in facts if fact.name == "in" and fact.arguments[1].type == "I")
    return (
        f"You are in the {name(room)}. You see: {'; '.join(seen) or 'nothing'}. Exits: {', '.join(exits) or 'none'}. "
        f"You carry: {', '.join(carried) or 'nothing'}."
    )


def _exits(facts: list[Any], room: Any) -> Iterator[tuple[str, Any]]:
    """Yield direction and room of each exit. `north_of(a, b)` is "a is north of b"."""
    known = set()
    for fact in facts:
        direction = fact.name.removesuffix("_of")
        if direction not in _OPPOSITE or len(fact.arguments) != 2:
            continue
        other, here = fact.arguments
        for way in ((direction, here, other), (_OPPOSITE[direction], other, here)):
            if way[1] == room and (way[0], way[2]) not in known:
                known.add((way[0], way[2]))
                yield way[0], way[2]


@functools.lru_cache(maxsize=1024)
def _make(maker: str, options: str, seed: int) -> Game:
    """Game of a maker. One at a time, because makers may draw from a generator of the whole process, seeded here."""
    settings = json.loads(options)
    if maker not in MAKERS:
        raise DataError(f"maker {maker!r:.60} of TextWorld is refused. Take one of {', '.join(MAKERS)}")
    if set(settings) != set(MAKERS[maker]) or not all(type(value) is int for value in settings.values()):
        raise DataError(f"maker {maker} of TextWorld takes the integers {', '.join(MAKERS[maker])}, got {options:.100}")
    game_options = GameOptions()
    game_options.seeds = seed
    with _making:
        textworld.g_rng.set_seed(seed)
        try:
            if maker == "treasure_hunter":
                return treasure_hunter.make(settings, game_options)
            for name, value in settings.items():
                setattr(game_options, name, value)
            return make_game(game_options)
        except QuestGenerationError as error:
            raise NoWorldError(
                f"maker {maker} of TextWorld makes no game of {options} and seed {seed}: {error}"
            ) from error
        except (ValueError, AssertionError, IndexError) as error:
            raise DataError(f"maker {maker} of TextWorld cannot make a game of {options}: {error}") from error
