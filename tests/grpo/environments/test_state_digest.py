"""Digests of states: equal exactly if the state of the world, of the user and the last result are equal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import pytest

from grpo.environments.catalog import load_worlds
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import Environment, EnvironmentState, SingleTurnEnvironment, StepResult
from grpo.environments.gym import GymEnvironment
from grpo.environments.replay import ReplayEnvironment
from grpo.environments.simulator import SimulatedEnvironment
from grpo.environments.task import TaskEnvironment
from grpo.environments.trl import TRLEnvironment
from grpo.environments.users.simulated_user import ScenarioUser, SimulatedUser
from grpo.environments.users.user import User, UserTurn
from grpo.messages import Message, ToolCall
from grpo.scenario import Scenario

State = dict[str, Any]


def reply(text: str) -> Message:
    return Message(role="assistant", content=text)


def call(name: str, text: str = "", /, **arguments: Any) -> Message:
    return Message(role="assistant", content=text, tool_calls=(ToolCall(name=name, arguments=arguments),))


def digest(environment: Environment, scenario: Scenario, *actions: Message, seed: int = 0) -> str | None:
    """Digest after these actions."""

    async def run() -> EnvironmentState:
        state = await environment.reset(scenario, seed=seed)
        for action in actions:
            state = (await environment.step(state, action)).state
            assert not state.done
        return state

    return environment.state_digest(asyncio.run(run()))


def tag(state: State, name: str) -> tuple[State, Any]:
    """Add a tag."""
    return {"tags": {**state["tags"], name: 1}}, "tagged"


def count(state: State) -> tuple[State, Any]:
    """Count the tags."""
    return state, len(state["tags"])


class Counter:
    """Counts letters, and forgets where they were."""

    def reset(self) -> str:
        self.letters: dict[str, int] = {}
        return "Write letters."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.letters[action] = self.letters.get(action, 0) + 1
        return "Go on.", 0.0, False, {}

    def state_digest(self) -> str:
        return str(sorted(self.letters.items()))


class Page:
    """The same with a tool, and without a digest."""

    def reset(self, **columns: Any) -> None:
        self.letters: list[str] = []

    def write(self, letter: str) -> str:
        """Write a letter.

        Args:
            letter: The letter.
        """
        self.letters.append(letter)
        return "written"


class Letters(Page):
    """The same with a digest."""

    def _state_digest(self) -> str:
        return "".join(sorted(self.letters))


class Silent:
    """Has no digest."""

    def reset(self, **columns: Any) -> str:
        return "Write letters."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "Go on.", 0.0, False, {}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Ways to one state, and ways to others, which all differ."""

    environment: Environment
    scenario: Scenario
    alike: Sequence[Sequence[Message]]
    others: Sequence[Sequence[Message]]


SCRIPT = Scenario(id="s", user_responses=("Hi.", "And then?", "Well."), world={"tags": {}})
FACTS = "- order number: 4711\n- color: red\n- size: 40 cm\nKnown: You are Ann."
GOAL = Scenario(id="g", goal=f"I want to send my lamp back.\n{FACTS}")
ASK_NUMBER, ASK_COLOR = reply("What is your order number?"), reply("Please tell me the color.")
LOG = Scenario.model_validate(
    {
        "id": "log",
        "user_responses": ["Where is it?", "Thanks."],
        "tools": [{"name": name, "description": "", "parameters": {"type": "object"}} for name in ("look_up", "state")],
        "world": {
            "recorded": [
                {"name": "look_up", "arguments": {"order": "7"}, "result": "found"},
                {"name": "state", "arguments": {}, "result": "same"},
                {"name": "state", "arguments": {}, "result": "same"},
            ]
        },
    }
)
FILES = Scenario.model_validate(
    {
        "id": "files",
        "user_responses": ["Make two folders.", "And now?"],
        "tools": [
            {"name": "mkdir", "description": "", "parameters": {"type": "object", "properties": {"dir_name": {}}}},
            {"name": "pwd", "description": "", "parameters": {"type": "object", "properties": {}}},
            {"name": "cd", "description": "", "parameters": {"type": "object", "properties": {"folder": {}}}},
        ],
        "world": {"GorillaFileSystem": {"root": {"home": {"type": "directory", "contents": {}}}}},
    }
)
LOOK, STATE, UNKNOWN = call("look_up", order="7"), call("state"), call("look_up", order="8")
MAKE_A, MAKE_B, PWD = call("mkdir", dir_name="a"), call("mkdir", dir_name="b"), call("pwd")
WRITE_A, WRITE_B = call("write", letter="a"), call("write", letter="b")

CASES = {
    "conversation": Case(
        environment=ConversationEnvironment(),
        scenario=SCRIPT,
        alike=([reply("Hello!")], [reply("What?")]),
        others=([], [reply("Hello!"), reply("Hello!")]),
    ),
    "simulated_user": Case(
        environment=ConversationEnvironment(user=SimulatedUser(patience=9)),
        scenario=GOAL,
        alike=(
            [ASK_NUMBER, ASK_COLOR, reply("Mmh.")],
            [ASK_COLOR, ASK_NUMBER, reply("Well.")],
        ),
        others=([], [reply("Mmh.")], [ASK_NUMBER], [ASK_NUMBER, reply("Mmh.")], [ASK_COLOR, reply("Mmh.")]),
    ),
    "task": Case(
        environment=TaskEnvironment([SCRIPT], functions=(tag, count)),
        scenario=SCRIPT,
        alike=(
            [call("tag", name="a"), call("tag", name="b")],
            [call("tag", name="b"), call("count"), call("tag", "First this.", name="a")],
        ),
        others=(
            [],
            [call("tag", name="a")],
            [call("tag", name="a"), call("tag", name="c")],
            [call("tag", name="a"), call("count")],
            [call("tag", name="a"), call("tag", name="b"), call("count")],
            [call("tag", name="a"), call("tag", name="b"), reply("Hello!")],
        ),
    ),
    "task in a world of BFCL": Case(
        environment=TaskEnvironment(worlds=load_worlds(), user=ScenarioUser(SimulatedUser())),
        scenario=FILES,
        alike=([MAKE_A, MAKE_B, PWD], [PWD, MAKE_B, MAKE_A, call("pwd", "Where am I?")]),
        others=([], [PWD], [MAKE_A, PWD], [MAKE_B, PWD], [MAKE_A, MAKE_B, call("cd", folder="a"), PWD]),
    ),
    "replay": Case(
        environment=ReplayEnvironment(),
        scenario=LOG,
        alike=([LOOK, STATE], [UNKNOWN, LOOK, STATE], [LOOK, LOOK, call("state", "Let me see.")]),
        others=([], [LOOK], [STATE], [LOOK, STATE, STATE], [UNKNOWN], [STATE, LOOK], [LOOK, STATE, reply("Soon.")]),
    ),
    "gym": Case(
        environment=GymEnvironment(Counter),
        scenario=SCRIPT,
        alike=([reply("a"), reply("b")], [reply("b"), reply("a")]),
        others=([], [reply("a")], [reply("a"), reply("a")]),
    ),
    "trl": Case(
        environment=TRLEnvironment(Letters),
        scenario=Scenario(id="s", user_responses=("Write letters.",)),
        alike=([WRITE_A, WRITE_B], [WRITE_B, WRITE_A]),
        others=([], [WRITE_A], [WRITE_A, WRITE_A]),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_ways_to_one_state_have_one_digest_and_other_states_have_others(case: Case):
    """Other orders, detours and texts lead to the same state. The same way twice does, too."""
    assert case.environment.gives_states
    first, *rest = [digest(case.environment, case.scenario, *way) for way in (*case.alike, *case.alike)]
    assert set(rest) == {first}
    assert first is not None
    all_digests = [first, *(digest(case.environment, case.scenario, *way) for way in case.others)]
    for (number, one), (other_number, other) in combinations(enumerate(all_digests), 2):
        assert one != other, (number, other_number)


def test_the_seed_of_a_simulated_user_is_not_part_of_the_state():
    """Episodes of a group have other seeds, and would have no state in common."""
    environment = ConversationEnvironment(user=SimulatedUser(patience=9))
    assert len({digest(environment, GOAL, seed=seed) for seed in range(3)}) == 1


def test_tools_that_come_with_a_later_turn_are_part_of_the_state():
    """What the agent can do differs, although world and message are the same."""
    tools = [{**tool, "from_turn": 1} if tool["name"] == "cd" else tool for tool in FILES.tools]
    case = CASES["task in a world of BFCL"]
    early, late = FILES, FILES.model_copy(update={"tools": tuple(tools)})
    assert digest(case.environment, early, PWD) != digest(case.environment, late, PWD)


class Budget(ConversationEnvironment):
    """Keeps a number of its own."""

    def __init__(self, spent: object) -> None:
        super().__init__()
        self._spent = spent

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        result = await super().step(state, action)
        metadata = {**result.state.metadata, "spent": self._spent}
        return replace(result, state=replace(result.state, metadata=metadata))


def test_what_a_subclass_keeps_in_its_metadata_is_part_of_the_state():
    """Values that are not JSON give no digest, so that two states never seem to be the same."""
    digests = [digest(Budget(spent), SCRIPT, reply("Hello!")) for spent in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]
    assert digest(Budget({1, 2}), SCRIPT, reply("Hello!")) is None


class Reader(User):
    """Answers with what the agent said at first."""

    async def first_turn(self, scenario: Scenario, *, seed: int | None) -> UserTurn:
        return UserTurn(content="Hi.")

    async def next_turn(self, scenario: Scenario, history: Sequence[Message], memory: Any) -> UserTurn:
        return UserTurn(content=history[1].content)


def test_without_a_known_state_there_is_no_digest():
    """A user of one's own, a model as user, a class without the method, and a simulator of one's own."""
    written = ConversationEnvironment(user=SimulatedUser(model=object()))  # type: ignore[arg-type]
    state = EnvironmentState(
        scenario=GOAL,
        history=(Message(role="user", content="Hi."),),
        metadata={"user": {"disclosed": (), "received": (), "unhelpful": 0}},
    )
    assert written.state_digest(state) is None
    for environment in (ConversationEnvironment(user=Reader()), GymEnvironment(Silent), TRLEnvironment(Page)):
        assert not environment.gives_states
        assert digest(environment, SCRIPT.model_copy(update={"user_responses": ("Hi.",)})) is None
    assert not SimulatedEnvironment(object()).gives_states  # type: ignore[arg-type]


@pytest.mark.parametrize("environment", [GymEnvironment(Counter), GymEnvironment(Silent)])
def test_a_wrapper_gives_states_and_copies_where_the_wrapped_environment_does(environment: GymEnvironment):
    """Otherwise a run would end only after its first rollout."""
    wrapper = SingleTurnEnvironment(environment)
    assert (wrapper.gives_states, wrapper.forks) == (environment.gives_states, False)
    assert SingleTurnEnvironment(ConversationEnvironment()).forks
