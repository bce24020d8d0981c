"""TextArena's games, compared with the package itself."""

from __future__ import annotations

import ast
import asyncio
import importlib.metadata
import inspect
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from grpo.config.environments import TextArenaSettings
from grpo.config.sft import GeneratedDemonstrations
from grpo.environments.catalog import make_environment
from grpo.environments.environment import EnvironmentState
from grpo.environments.seeded_worlds import play_actions
from grpo.errors import DataError
from grpo.identity.code import external_digests
from grpo.learner.offline.demonstrations import read_demonstrations
from grpo.messages import Message
from grpo.scenario import Scenario

textarena = pytest.importorskip("textarena", reason="the extra textarena is not installed")
from grpo.environments.textarena.environment import TextArenaEnvironment  # noqa: E402
from grpo.environments.textarena.games import GAMES, ArenaGame  # noqa: E402
from grpo.environments.textarena.players import player_actions  # noqa: E402
from grpo.environments.textarena.scenario_generator import ArenaLevel, textarena_scenarios  # noqa: E402

OPTIONS: dict[str, dict[str, Any]] = {
    "GuessTheNumber": {"max_number": 100},
    "Sudoku": {"clues": 78},
    "LightsOut": {"size": 3},
}
MOVES = {
    "Blackjack": ["[Hit]", "[Stand]", "?", "[Stand]", "[Hit]", "[Hit]", "[Stand]", "[Stand]", "[Stand]"],
    "FrozenLake": ["down", "[right]", "[up]", "[left]", "[left]", "[left]"],
    "GuessTheNumber": ["[50]", "[50]", "7", "I say [99].", "[101]", "more"],
    "LightsOut": ["[0 0]", "[1 1]", "[9 9]", "[2 2]", "[1 1]"],
    "Mastermind": ["[1 2 3 4]", "[1 2 3 4]", "[2 1 4 3]", "[1 1 1 1]", "none"],
    "Minesweeper": ["[0 0]", "[7 7]", "[7 7]", "[0 7]", "[7 0]", "[3 3]", "[4 4]", "[2 6]"],
    "Secretary": ["[continue]", "[stay]", "[continue]", "[accept]"],
    "Sudoku": ["[1 1 1]", "[1 1 2]", "[9 9 9]"],
    "ThreeCardMonte": ["[7]", "[1]"],
}
PLAYED = ("FrozenLake", "GuessTheNumber", "LightsOut", "Mastermind", "Sudoku", "ThreeCardMonte")


def scenario(game: str, seed: int = 0, **world: Any) -> Scenario:
    options = OPTIONS.get(game, {})
    return Scenario(
        id=f"{game}-{seed}",
        user_responses=("go",),
        world={"game": f"{game}-v0", "options": options, "seed": seed, **world},
    )


def play(environment: TextArenaEnvironment, case: Scenario, *actions: str) -> EnvironmentState:
    return asyncio.run(play_actions(environment, case, actions))


@contextmanager
def modules_draw_from(stand_in: Any) -> Iterator[None]:
    """TextArena as it is installed, with the module `random` itself."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "textarena"]
    patched = [module for module in modules if type(vars(module).get("random")).__name__ == "_EpisodeRandom"]
    before = [module.random for module in patched]
    for module in patched:
        module.random = stand_in
    try:
        yield
    finally:
        for module, original in zip(patched, before, strict=True):
            module.random = original


def library(game: str, seed: int, actions: list[str]) -> tuple[list[str], float | None, bool]:
    """Texts, reward and end as TextArena gives them if it draws from `random`, with the registered game's wrapper."""
    with modules_draw_from(random):
        env = textarena.make(f"{game}-v0", **OPTIONS.get(game, {}))
        env.reset(num_players=1, seed=seed)
        texts, over = [], False
        for action in [None, *actions]:
            if action is not None:
                over, _ = env.step(action)
            if over:
                break
            _, messages = env.env.env.get_observation()
            texts.append([text.strip() for _, text, kind in messages if "PLAYER_ACTION" not in str(kind)])
    return ["\n".join(parts) for parts in texts], env.state.rewards[0] if over else None, over


@pytest.mark.parametrize("game", sorted(GAMES))
@pytest.mark.parametrize("seed", [1, 5])
def test_texts_rewards_and_ends_are_those_of_the_package(game: str, seed: int):
    """The same seed and moves, valid and invalid ones, in the package as it is installed."""
    environment = make_environment(TextArenaSettings(kind="textarena"))
    state = play(environment, scenario(game, seed), *MOVES[game])
    texts, reward, over = library(game, seed, MOVES[game])
    assert [message.content for message in state.history if message.role == "user"] == texts
    outcome = environment.verify(state)
    assert (state.done, outcome.reward) == (over, reward or 0.0)
    assert outcome.success == (reward == 1)


@pytest.mark.parametrize("game", PLAYED)
def test_the_player_of_a_game_wins_it(game: str):
    """Ten seeds each, with reward 1."""
    environment = TextArenaEnvironment(max_turns=40)
    for seed in range(10):
        case = scenario(game, seed)
        outcome = environment.verify(play(environment, case, *player_actions(case)))
        assert (outcome.success, outcome.reward) == (True, 1.0)


def test_games_whose_turns_alternate_go_on_as_alone():
    """Nine games at once, of which three draw cards and mines while they are played, and others draw between turns."""
    environment = TextArenaEnvironment()
    cases = [scenario(game, seed) for game in sorted(GAMES) for seed in (1, 2)]
    moves = [MOVES[case.id.partition("-")[0]] for case in cases]
    alone = [play(environment, case, *actions).history for case, actions in zip(cases, moves, strict=True)]

    async def together() -> list[EnvironmentState]:
        states = list(await asyncio.gather(*(environment.reset(case) for case in cases)))
        for turn in range(max(map(len, moves))):
            random.seed(turn)
            for index in reversed(range(len(states))):
                if turn < len(moves[index]) and not states[index].done:
                    action = Message(role="assistant", content=moves[index][turn])
                    states[index] = (await environment.step(states[index], action)).state
                    random.random()
        return states

    assert [state.history for state in asyncio.run(together())] == alone


def test_a_game_leaves_the_random_numbers_of_the_process_as_they_were():
    """TextArena seeds the module `random` at each start; here the process does not notice."""
    random.seed(3)
    before = random.getstate()
    play(TextArenaEnvironment(), scenario("Blackjack"), *MOVES["Blackjack"])
    assert random.getstate() == before


@pytest.mark.parametrize("game", sorted(GAMES))
def test_which_games_draw_after_the_start_is_known(game: str):
    """The digest of the others leaves their stream out."""
    arena = ArenaGame(f"{game}-v0", OPTIONS.get(game, {}), 0)
    before = arena._stream.getstate()
    for move in MOVES[game]:
        if not arena.step(move).over:
            continue
        break
    assert (arena._stream.getstate() != before) == GAMES[game]


def test_a_state_can_be_continued_in_two_ways():
    """A step leaves the state before it as it was, also where the next card comes from."""
    environment = TextArenaEnvironment()

    async def continue_twice() -> list[str]:
        state = await environment.reset(scenario("Blackjack", 4))
        results = [
            await environment.step(state, Message(role="assistant", content=move))
            for move in ("[Hit]", "[Stand]", "[Hit]")
        ]
        return [result.state.history[-1].content for result in results]

    first, other, again = asyncio.run(continue_twice())
    assert first == again != other


def test_states_are_the_same_whichever_way_led_to_them():
    """Right and left again on the lake; an invalid move leaves less allowance and so is another state."""
    environment = TextArenaEnvironment()
    case = scenario("FrozenLake", 3)
    free = player_actions(case)[0]
    back = {"[right]": "[left]", "[down]": "[up]"}[free]
    digests = [
        environment.state_digest(play(environment, case, *moves)) for moves in ((), (free, back), (free,), ("?",))
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_the_second_invalid_move_in_a_row_ends_the_game():
    """As TextArena has it, with the reward so far, which is 0 before the first guess; brackets are added."""
    environment = TextArenaEnvironment()
    state = play(environment, scenario("GuessTheNumber"), "one", "two", "50")
    assert "You attempted an invalid move." in state.history[2].content
    outcome = environment.verify(state)
    assert (state.done, state.turn_count, outcome.success, outcome.reward) == (True, 2, False, 0.0)
    state = play(environment, scenario("GuessTheNumber"), "one", "60")
    assert state.history[-1].content.startswith("The target number is ")


def test_the_limit_of_turns_cuts_an_episode_off():
    """After one turn here, which is not the game's end."""
    environment = TextArenaEnvironment(max_turns=1)

    async def last() -> tuple[bool, bool]:
        state = await environment.reset(scenario("GuessTheNumber"))
        result = await environment.step(state, Message(role="assistant", content="[60]"))
        return result.terminated, result.truncated

    assert asyncio.run(last()) == (False, True)


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"game": "GuessTheNumber-v0"}, "world needs game and seed"),
        ({"game": "Wordle-v0", "seed": 1}, "game 'Wordle-v0' of TextArena is refused: it needs other players, a mod"),
        ({"game": "Chess-v0", "seed": 1}, "game 'Chess-v0' of TextArena is refused"),
        ({"game": "FrozenLake-v0-easy", "seed": 1}, "TextArena has no game 'FrozenLake-v0-easy'. Take one of FrozenLa"),
        ({"game": "FrozenLake-v0", "seed": 1, "options": {"holes": 3}}, "cannot be made with options .*holes"),
        ({"game": "LightsOut-v0", "seed": 12, "options": {"size": 1}}, "makes no puzzle of seed 12. Take another"),
        ({"game": "Sudoku-v0", "seed": 1, "digest": "0" * 16}, "starts from another world than when it was generated"),
    ],
)
def test_a_scenario_without_a_game_is_refused(world: dict[str, Any], message: str):
    """Before any episode."""
    case = Scenario(id="s", user_responses=("go",), world=world)
    with pytest.raises(DataError, match=message):
        asyncio.run(TextArenaEnvironment().check(case))


def test_worlds_come_from_seeds_of_their_own_range_and_none_is_drawn_twice():
    """Of 1 to 40, ten numbers or so are held out; the digest of each tells to which part it belongs."""
    level = ArenaLevel(game="GuessTheNumber-v0", name="forty", options={"max_number": 40}, train=20, heldout=5)
    records = list(textarena_scenarios([level]))
    assert [record["split"] for record in records] == ["train"] * 20 + ["heldout"] * 5
    numbers = [
        ArenaGame(r["world"]["game"], r["world"]["options"], r["world"]["seed"]).env.game_number for r in records
    ]
    assert len(set(numbers)) == 25
    assert all((int(r["world"]["digest"][0], 16) < 4) == (r["split"] == "heldout") for r in records)
    assert {record["metadata"]["category"] for record in records} == {"forty"}
    assert records == list(textarena_scenarios([level]))
    with pytest.raises(DataError, match=r"game forty has only \d+ different worlds for train, and 41 are wanted"):
        list(textarena_scenarios([level.model_copy(update={"train": 41})]))


def demonstrations(game: str, **options: Any) -> GeneratedDemonstrations:
    function = "grpo.environments.textarena.scenario_generator:textarena_demonstrations"
    return GeneratedDemonstrations.model_validate(
        {"kind": "python", "object": function, "options": {"levels": [{"game": game}], "each": 2, **options}}
    )


def test_demonstrations_are_conversations_that_fine_tuning_reads():
    """Guesses that halve the interval: 10 first, of 1 to 20; five turns find each number, one turn only 10."""
    conversations = read_demonstrations(demonstrations("GuessTheNumber-v0", max_turns=5))
    assert [c[1].content for c in conversations] == ["[10]", "[10]"]
    assert all([m.role for m in c] == ["user", "assistant"] * (len(c) // 2) for c in conversations)
    with pytest.raises(DataError, match="game Minesweeper-v0 of TextArena has no player that demonstrates it"):
        read_demonstrations(demonstrations("Minesweeper-v0"))


@pytest.mark.parametrize("game", sorted(GAMES))
def test_no_game_evaluates_an_action_as_python(game: str):
    """Its sources call none of the functions that run text, and import no module that does."""
    ArenaGame(f"{game}-v0", OPTIONS.get(game, {}), 0)
    modules = [m for name, m in sys.modules.items() if name.startswith(f"textarena.envs.{game}.")]
    modules += [sys.modules[f"textarena.{name}"] for name in ("core", "state")]
    nodes = [node for module in modules for node in ast.walk(ast.parse(inspect.getsource(module)))]
    calls = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    imports = {name.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for name in node.names}
    assert not calls & {"eval", "exec", "compile", "__import__", "sympify"}
    assert not imports & {"sympy", "pickle", "subprocess", "os", "importlib", "literal_eval"}


def test_the_release_of_the_package_is_in_the_identity():
    """Another one makes other worlds."""
    version = importlib.metadata.version("textarena")
    assert external_digests([TextArenaSettings(kind="textarena")])["package textarena"] == version
    source = demonstrations("GuessTheNumber-v0")
    assert external_digests([source])[f"{source.reference}, package TextArena"] == version


@pytest.mark.parametrize(
    ("game", "action"), [("GuessTheNumber", "[{}]"), ("Sudoku", "[1 1 {}]"), ("ThreeCardMonte", "[{}]")]
)
def test_a_number_that_python_does_not_convert_is_answered_in_words(game: str, action: str):
    """5,000 digits: the game goes on, and the next action counts."""
    state = play(TextArenaEnvironment(), scenario(game), action.format("9" * 5_000), action.format(1))
    assert state.history[2].content == "That is not an action: it has a number of more than 400 digits."
    assert state.history[4:] == () or "400 digits" not in state.history[4].content


@pytest.mark.parametrize("game", sorted(GAMES))
def test_invalid_moves_until_the_end_lose_the_game(game: str):
    """Words instead of a move: TextArena's Three-Card Monte swaps the reward with the reason, which is not a number."""
    environment = make_environment(TextArenaSettings(kind="textarena"))
    outcome = environment.verify(play(environment, scenario(game, 1), *["I do not know."] * 12))
    assert outcome.success is False
    assert outcome.reward == (-1.0 if game == "Secretary" else 0.0)
