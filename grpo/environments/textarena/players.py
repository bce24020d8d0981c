"""Players that demonstrate TextArena's games.

TextArena has no players of its own. These use only what an agent reads: hints, boards, and swaps of cups.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations, product
from typing import Any

from grpo.environments.text_game import world_of
from grpo.environments.textarena.games import ArenaGame, family
from grpo.errors import DataError
from grpo.scenario import Scenario

_DIRECTIONS = {"right": (0, 1), "down": (1, 0), "left": (0, -1), "up": (-1, 0)}


def player_actions(scenario: Scenario) -> list[str]:
    """Actions that win a scenario's game. Raises `DataError` if no player knows the game."""
    game, options, seed = world_of(scenario, "game", "GuessTheNumber-v0")
    player = _PLAYERS.get(family(game))
    if player is None:
        raise DataError(
            f"game {game} of TextArena has no player that demonstrates it. Take one of {', '.join(_PLAYERS)}"
        )
    return [f"[{move}]" for move in player(ArenaGame(game, options, seed).env)]


def _guess_the_number(env: Any) -> list[str]:
    """Halve the interval until the number is hit.

    1 to 20, the number is 7    10 (lower) 5 (higher) 7
    """
    low, high = env.min_number, env.max_number
    guesses: list[int] = []
    while not guesses or guesses[-1] != env.game_number:
        guess = (low + high) // 2
        guesses.append(guess)
        low, high = (guess + 1, high) if guess < env.game_number else (low, guess - 1)
    return list(map(str, guesses))


def _mastermind(env: Any) -> list[str]:
    """Guess the first code in order that agrees with the pegs of all guesses."""
    secret, numbers = tuple(env.state.game_state["secret_code"]), range(1, env.num_numbers + 1)
    codes: Iterator[tuple[int, ...]]
    codes = (
        product(numbers, repeat=env.code_length) if env.duplicate_numbers else permutations(numbers, env.code_length)
    )
    pegs: dict[tuple[int, ...], tuple[int, int]] = {}
    for code in codes:  # a code that once disagrees with a guess is never guessed, so that one pass is enough
        if all(_pegs(code, guess) == found for guess, found in pegs.items()):
            pegs[code] = _pegs(secret, code)
            if code == secret:
                break
    return [" ".join(map(str, guess)) for guess in pegs]


def _pegs(code: Sequence[int], guess: Sequence[int]) -> tuple[int, int]:
    """Numbers in the right place, and numbers of the code in any place."""
    return sum(a == b for a, b in zip(code, guess, strict=True)), (Counter(code) & Counter(guess)).total()


def _frozen_lake(env: Any) -> list[str]:
    """Take a shortest way around the holes."""
    grid, start = env.state.game_state["grid"], tuple(env.state.game_state["player_pos"])
    ways: dict[tuple[int, int], list[str]] = {start: []}
    queue = deque([start])
    while queue:
        row, column = queue.popleft()
        if grid[row][column] == "G":
            return ways[row, column]
        for name, (down, right) in _DIRECTIONS.items():
            cell = row + down, column + right
            inside = 0 <= cell[0] < env.size and 0 <= cell[1] < env.size
            if inside and cell not in ways and grid[cell[0]][cell[1]] != "H":
                ways[cell] = [*ways[row, column], name]
                queue.append(cell)
    return []


def _lights_out(env: Any) -> list[str]:
    """Fewest presses, in the order of rows.

    The presses of the first row decide the presses of each next row, because each row must put out the lights that
    are still on in the row above. A choice of the first row solves the puzzle if it leaves the last row dark.
    """
    solutions = []
    for first in product((False, True), repeat=env.size):
        grid = [row[:] for row in env.state.game_state["grid"]]
        presses, wanted = [], list(first)
        for row in range(env.size):
            for column in range(env.size):
                if wanted[column]:
                    presses.append((row, column))
                    env._toggle_lights(grid, row, column)
            wanted = grid[row]
        if not any(grid[-1]):
            solutions.append(presses)
    return [f"{row} {column}" for row, column in min(solutions, key=len)]


def _sudoku(env: Any) -> list[str]:
    """Fill the empty cells in order. The puzzle has one solution."""
    return [
        f"{row + 1} {column + 1} {env.full_grid[row][column]}"
        for row, cells in enumerate(env.game_board)
        for column, digit in enumerate(cells)
        if digit == 0
    ]


def _three_card_monte(env: Any) -> list[str]:
    """Name the cup to which the swaps moved the ball."""
    return [str(env.ball_pos)]


_PLAYERS: Mapping[str, Callable[[Any], list[str]]] = {
    "FrozenLake": _frozen_lake,
    "GuessTheNumber": _guess_the_number,
    "LightsOut": _lights_out,
    "Mastermind": _mastermind,
    "Sudoku": _sudoku,
    "ThreeCardMonte": _three_card_monte,
}
