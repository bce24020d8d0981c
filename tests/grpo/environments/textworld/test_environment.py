"""TextWorld's games, compared with the package's own environment."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo.config.environments import TextWorldSettings
from grpo.config.sft import GeneratedDemonstrations
from grpo.environments.catalog import make_environment
from grpo.environments.environment import EnvironmentState
from grpo.environments.seeded_worlds import play_actions
from grpo.errors import DataError
from grpo.identity.code import external_digests
from grpo.learner.offline.demonstrations import read_demonstrations
from grpo.messages import Message
from grpo.scenario import Scenario

textworld = pytest.importorskip("textworld", reason="the extra textworld is not installed")
from grpo.environments.textworld.environment import TextWorldEnvironment, game_of  # noqa: E402
from grpo.environments.textworld.games import describe  # noqa: E402
from grpo.environments.textworld.scenario_generator import TextWorldLevel, textworld_scenarios  # noqa: E402

LEVELS: dict[str, dict[str, int]] = {
    "treasure_hunter": {"level": 13},
    "quest": {"nb_rooms": 3, "nb_objects": 6, "quest_length": 3},
}


def scenario(maker: str = "treasure_hunter", seed: int = 0, **world: Any) -> Scenario:
    return Scenario(
        id=f"{maker}-{seed}",
        user_responses=("go",),
        world={"maker": maker, "options": LEVELS.get(maker, {}), "seed": seed, **world},
    )


def play(environment: TextWorldEnvironment, case: Scenario, commands: Sequence[str]) -> EnvironmentState:
    return asyncio.run(play_actions(environment, case, commands))


def library(case: Scenario, folder: Path, commands: Sequence[str]) -> tuple[float, bool, bool, list[list[str]]]:
    """Share of the score, win, loss and admissible commands as TextWorld's own environment gives them."""
    game = game_of(case)._game
    game.save(str(folder / "game.json"))
    env = textworld.start(str(folder / "game.json"))
    state = env.reset()
    admissible = [state["admissible_commands"]]
    score = 0
    for command in commands:
        state, score, done = env.step(command)
        admissible.append(state["admissible_commands"])
        if done:
            break
    return score / game.max_score, state["won"], state["lost"], admissible


@pytest.mark.parametrize("maker", sorted(LEVELS))
def test_the_walkthrough_wins_with_the_packages_score(maker: str, tmp_path: Path):
    """Ten games of each maker, all of them."""
    environment = make_environment(TextWorldSettings(kind="textworld", max_turns=40))
    for seed in range(10):
        case = scenario(maker, seed)
        commands = game_of(case).walkthrough
        state = play(environment, case, commands)
        outcome = environment.verify(state)
        assert (outcome.reward, outcome.success, state.done) == (1.0, True, True)
        assert library(case, tmp_path, commands)[:3] == (1.0, True, False)
        assert state.turn_count == len(commands)


@pytest.mark.parametrize("maker", sorted(LEVELS))
def test_admissible_commands_and_ends_are_those_of_the_package(maker: str, tmp_path: Path):
    """Along the last admissible command of each state, six turns or until the game ends."""
    case, game = scenario(maker, 3), game_of(scenario(maker, 3))
    commands: list[str] = []
    admissible = [list(game.admissible())]
    over, reward = False, 0.0
    while not over and len(commands) < 6:
        commands.append(admissible[-1][-1])
        turn = game.step(commands[-1])
        over, reward = turn.over, reward + turn.reward
        admissible.append(list(game.admissible()))
    score, won, lost, expected = library(case, tmp_path, commands)
    assert admissible == [[command.casefold() for command in commands] for commands in expected]
    assert (reward, game.success, over) == (score, won, won or lost)


def test_the_wrong_treasure_loses_the_game(tmp_path: Path):
    """Treasure hunter has an object that must not be taken; among ten easy games some player meets it."""
    environment = TextWorldEnvironment(max_turns=40)
    for seed in range(10):
        case = scenario("treasure_hunter", seed, options={"level": 5})
        game = game_of(case)
        name = next(info.name for id, info in game._game.infos.items() if id == wrong_object(game._game))
        ways = [[f"go {d}" for d in way] for way in ((), ("north",), ("south",), ("east",), ("west",))]
        for way in ways:
            state = play(environment, case, [*way, f"take {name}"])
            if state.done:
                outcome = environment.verify(state)
                assert (outcome.success, outcome.reward) == (False, 0.0)
                assert library(case, tmp_path, [*way, f"take {name}"])[1:3] == (False, True)
                return
    raise AssertionError("no game has it near the start")


def wrong_object(game: Any) -> str:
    """Id of the object whose taking fails the quest."""
    (event,) = game.quests[0].fail_events
    (fact,) = event.condition.preconditions
    return str(fact.arguments[0].name)


def test_a_command_that_is_not_possible_is_answered_with_those_that_are():
    """It counts as a turn; case, spaces and a full stop do not matter."""
    environment = TextWorldEnvironment()
    case = scenario(seed=1)
    first = game_of(case).walkthrough[0]
    state = play(environment, case, ["fly home", f" {first.upper()}. "])
    assert state.history[2].content.startswith("You cannot 'fly home' here. You can: go ")
    assert state.history[4] == play(environment, case, [first]).history[2]
    assert state.turn_count == 2


def test_the_room_is_described_in_words():
    """A room with a closed chest, an open box, a table and two exits, one through a locked door, built by hand."""
    maker = textworld.GameMaker()
    attic, cellar, hall = maker.new_room("attic"), maker.new_room("cellar"), maker.new_room("hall")
    maker.connect(attic.east, hall.west)
    passage = maker.connect(attic.north, cellar.south)
    passage.door = maker.new(type="d", name="oak door")
    passage.door.add_property("locked")
    chest, box, table = (
        maker.new(type=kind, name=name) for kind, name in (("c", "chest"), ("c", "box"), ("s", "table"))
    )
    chest.add_property("closed")
    box.add_property("open")
    chest.add(maker.new(type="o", name="ruby"))
    box.add(maker.new(type="o", name="sock"))
    table.add(maker.new(type="k", name="brass key"))
    attic.add(chest, box, table)
    maker.inventory.add(maker.new(type="o", name="lamp"))
    maker.set_player(attic)
    game = maker.build(validate=False)
    assert describe(game, list(game.world.state.facts)) == (
        "You are in the attic. You see: closed chest; open box (in it: sock); table (on it: brass key). "
        "Exits: east, north (locked oak door). You carry: lamp."
    )


def test_games_whose_turns_alternate_go_on_as_alone():
    """Six walkthroughs at once, started at the same time."""
    environment = TextWorldEnvironment(max_turns=40)
    cases = [scenario(maker, seed) for maker in LEVELS for seed in (11, 12, 13)]
    commands = [game_of(case).walkthrough for case in cases]

    async def together() -> list[EnvironmentState]:
        states = list(await asyncio.gather(*(environment.reset(case) for case in cases)))
        for turn in range(max(map(len, commands))):
            for index in reversed(range(len(states))):
                if turn < len(commands[index]):
                    action = Message(role="assistant", content=commands[index][turn])
                    states[index] = (await environment.step(states[index], action)).state
        return states

    alone = [play(environment, case, names).history for case, names in zip(cases, commands, strict=True)]
    assert [state.history for state in asyncio.run(together())] == alone


def test_a_state_can_be_continued_in_two_ways_and_is_the_same_whichever_way_led_to_it():
    """Out and back again; a step leaves the state before it as it was."""
    environment = TextWorldEnvironment()
    case = scenario(seed=2)
    there = game_of(case).walkthrough[0]
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}[there.removeprefix("go ")]
    digests = [
        environment.state_digest(play(environment, case, commands))
        for commands in ((), (there, f"go {back}"), ("fly",), (there,))
    ]
    assert digests[0] == digests[1] == digests[2] != digests[3]

    async def continue_twice() -> list[str]:
        state = await environment.reset(case)
        results = [await environment.step(state, Message(role="assistant", content=c)) for c in (there, "look", there)]
        return [result.state.history[-1].content for result in results]

    first, other, again = asyncio.run(continue_twice())
    assert first == again != other


def test_a_seed_makes_the_same_world_in_every_process():
    """The digest does not depend on the order of sets, which Python changes from process to process."""
    program = (
        "from grpo.environments.textworld.games import TextWorldGame\n"
        f"for maker, options in {LEVELS!r}.items():\n"
        "    game = TextWorldGame(maker, options, 5)\n"
        "    print(game.state_digest(), game.opening, game.walkthrough)\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    here = [game_of(scenario(maker, 5)).state_digest() for maker in LEVELS]
    assert outputs[0] == outputs[1]
    assert [line.split()[0] for line in outputs[0].splitlines()] == here


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"maker": "quest"}, "world needs maker and seed"),
        ({"maker": "cooking", "seed": 1}, "maker 'cooking' of TextWorld is refused. Take one of treasure_hunter, qu"),
        (
            {"maker": "quest", "seed": 1, "options": {"level": 3}},
            "takes the integers nb_rooms, nb_objects, quest_length",
        ),
        ({"maker": "treasure_hunter", "seed": 1, "options": {"level": 40}}, "cannot make a game of .*within"),
        (
            {"maker": "treasure_hunter", "seed": 1, "options": {"level": 3}, "digest": "0" * 16},
            "starts from another world than when it was generated",
        ),
    ],
)
def test_a_scenario_without_a_game_is_refused(world: dict[str, Any], message: str):
    """Before any episode."""
    case = Scenario(id="s", user_responses=("go",), world=world)
    with pytest.raises(DataError, match=message):
        asyncio.run(TextWorldEnvironment().check(case))


def test_worlds_come_from_seeds_of_their_own_range_and_demonstrations_are_walkthroughs():
    """The digest tells the split; a quest of level 3 ends with the treasure."""
    level = TextWorldLevel(maker="treasure_hunter", options={"level": 3}, train=6, heldout=2)
    records = list(textworld_scenarios([level]))
    assert [record["split"] for record in records] == ["train"] * 6 + ["heldout"] * 2
    assert all((int(r["world"]["digest"][0], 16) < 4) == (r["split"] == "heldout") for r in records)
    assert {record["metadata"]["category"] for record in records} == {"treasure_hunter-3"}
    assert records == list(textworld_scenarios([level]))
    function = "grpo.environments.textworld.scenario_generator:textworld_demonstrations"
    options = {"levels": [{"maker": "treasure_hunter", "options": {"level": 3}}], "each": 2}
    source = GeneratedDemonstrations.model_validate({"kind": "python", "object": function, "options": options})
    conversations = read_demonstrations(source)
    assert [c[-1].content.split()[0] for c in conversations] == ["take"] * 2
    version = importlib.metadata.version("textworld")
    assert external_digests([TextWorldSettings(kind="textworld")])["package textworld"] == version
    assert external_digests([source])[f"{source.reference}, package textworld"] == version
