"""Text adventures of TextWorld.

A scenario's world names the maker, its options and the seed, and holds a digest of the resulting world:

    world    {"maker": "treasure_hunter", "options": {"level": 3}, "seed": 17, "digest": "5d0c…"}
    user     … You can: go east. You are in the attic. You see: nothing. Exits: east. You carry: nothing.
    agent    go east
    user     You are in the pantry. You see: worm. Exits: west. You carry: nothing.

An inadmissible command is answered with those that are possible, and nothing changes. TextWorld ends the game when its
quests are completed or can no longer be completed. The reward is its score as a share of the highest one.
"""

from __future__ import annotations

from grpo.environments.text_game import TextGame, TextGameEnvironment, world_of
from grpo.environments.textworld.games import TextWorldGame
from grpo.scenario import Scenario


class TextWorldEnvironment(TextGameEnvironment):
    """One game of TextWorld per episode, see the module. `max_turns` turns of the agent cut it off."""

    def start(self, scenario: Scenario) -> tuple[TextGame, str]:
        """Make the game with the scenario's seed."""
        game = game_of(scenario)
        return game, game.opening


def game_of(scenario: Scenario) -> TextWorldGame:
    """Game of a scenario at its start. Raises `DataError` if its world makes none."""
    return TextWorldGame(*world_of(scenario, "maker", "treasure_hunter"))
