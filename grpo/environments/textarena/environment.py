"""Single-player games of TextArena.

A scenario's world names the game, its options and the seed, and holds a digest of the resulting world:

    world    {"game": "GuessTheNumber-v0", "options": {"max_number": 50}, "seed": 17, "digest": "5d0c…"}
    user     You are Player 0. You are playing Guess The Number. … Enter your guess.
    agent    [25]
    user     The target number is lower.

TextArena ends the game and gives its reward, and 1 is a win. It answers an invalid move in words, and ends the game
at the second one in a row. Each turn brings only what is new, because the conversation keeps the rest.
"""

from __future__ import annotations

from grpo.environments.text_game import TextGame, TextGameEnvironment, world_of
from grpo.environments.textarena.games import ArenaGame
from grpo.scenario import Scenario


class TextArenaEnvironment(TextGameEnvironment):
    """One game of TextArena per episode, see the module. `max_turns` turns of the agent cut it off."""

    def start(self, scenario: Scenario) -> tuple[TextGame, str]:
        """Start the game with the scenario's seed."""
        game = ArenaGame(*world_of(scenario, "game", "GuessTheNumber-v0"))
        return game, game.opening
