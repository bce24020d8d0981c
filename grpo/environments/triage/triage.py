"""Triage environment: an agent passes each customer on to one team, and asks first if the message is too vague.

A scenario with one line is clear. In a scenario with two lines, the opening shows no team, and the second line answers
a question. The right team is the one that lists the scenario's category, or has its name:

    clear    U: The kettle leaks.      A: route(team=repairs)
    vague    U: I have a problem.      A: What is it about?     U: The kettle leaks.     A: route(team=repairs)

An episode ends with the first call that the tool accepts. It succeeds if this is one call of the right team, after a
question if the opening was vague, and without a question if it was clear. If a reply has no question, or the question
has been answered, the customer leaves, and the episode ends as well.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence

from grpo.config.environments import Team
from grpo.environments.environment import Environment, EnvironmentState, StepResult, episode_id, world_digest
from grpo.environments.scenario_sampler import ScenarioLike, ScenarioSampler
from grpo.environments.users.simulated_user import questions
from grpo.errors import DataError
from grpo.messages import Message, Tool
from grpo.scenario import Scenario
from grpo.tools import argument_error
from grpo.trajectories import Outcome

ROUTE = "route"


class TriageEnvironment(Environment):
    """Triage by teams, see the module. `system_prompt` comes before the list of teams."""

    def __init__(
        self,
        teams: Sequence[Team],
        scenarios: Iterable[ScenarioLike] = (),
        max_turns: int = 3,
        *,
        system_prompt: str = "",
    ) -> None:
        self._sampler = ScenarioSampler(scenarios, shuffled=True)
        self.scenarios = self._sampler.scenarios
        self.max_turns = max_turns
        self._team_of = {category: team.name for team in teams for category in team.categories or (team.name,)}
        described = [f"{team.name}: {team.handles}" for team in teams if team.handles]
        self.system_prompt = "\n".join(filter(None, (system_prompt, *described)))
        self.tools = (
            Tool(
                name=ROUTE,
                description="Pass the customer on to a team.",
                parameters={
                    "type": "object",
                    "properties": {"team": {"type": "string", "enum": [team.name for team in teams]}},
                    "required": ["team"],
                },
            ),
        )

    async def check(self, scenario: Scenario) -> None:
        """Refuse a scenario if it has no script, or if no team handles its category."""
        if not scenario.user_responses:
            raise DataError(f"scenario {scenario.id} has no script, but triage plays user_responses. Leave it out")
        if scenario.metadata.category not in self._team_of:
            raise DataError(
                f"scenario {scenario.id}: no team handles category {scenario.metadata.category}. Add it to the "
                "categories of a team in environment.teams, or leave the scenario out"
            )

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """Start with the customer's first line."""
        scenario = self._sampler.sample(seed) if scenario is None else scenario
        await self.check(scenario)
        opening = Message(role="user", content=scenario.user_responses[0])
        world = {"teams": (), "asked": 0}
        return EnvironmentState(
            scenario=scenario, episode_id=episode_id(scenario, seed), history=(opening,), world=world
        )

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """Execute the call, or let the customer answer a question."""
        state = state.after(action, turn_count=state.turn_count + 1)
        if action.malformed and not action.tool_calls:
            return self._answer(state, _error(action.malformed))
        if not action.tool_calls:
            return self._customer(state, action.content)
        for call in action.tool_calls:
            problem = f"unknown tool {call.name}; there is {ROUTE}" if call.name != ROUTE else None
            problem = problem or argument_error(self.tools[0], call.arguments)
            if problem is not None:
                return self._answer(state, _error(problem))
        teams = tuple(str(call.arguments["team"]) for call in action.tool_calls)
        state = state.after(world={**state.world, "teams": teams}, done=True)
        return StepResult(state=state, response=None, terminated=True)

    def _customer(self, state: EnvironmentState, reply: str) -> StepResult:
        """Answer the next question with the next line of the script. If there is none, leave."""
        lines, asked = state.scenario.user_responses, state.world["asked"] + bool(questions(reply))
        answered = asked > state.world["asked"] and asked < len(lines)
        state = state.after(world={**state.world, "asked": asked}, done=not answered)
        if not answered:
            return StepResult(state=state, response=None, terminated=True)
        return self._answer(state, Message(role="user", content=lines[asked]))

    def _answer(self, state: EnvironmentState, message: Message) -> StepResult:
        truncated = state.turn_count >= self.max_turns
        return StepResult(state=state.after(message, done=truncated), response=message, truncated=truncated)

    def fork(self, state: EnvironmentState) -> EnvironmentState:
        """A deep copy, because a state has everything of its episode."""
        return copy.deepcopy(state)

    def state_digest(self, state: EnvironmentState) -> str:
        """Digest of the calls and questions so far, and of the last message."""
        return world_digest(state)

    def can_verify(self, scenario: Scenario, *, judged: bool = False) -> bool:
        """True: the right team follows from the category."""
        return True

    def verify(self, state: EnvironmentState) -> Outcome:
        """Check that one call was made, that it names the right team, and that questions were asked as needed."""
        teams, team = state.world["teams"], self._team_of[state.scenario.metadata.category]
        checks = {
            "routed_once": len(teams) == 1,
            "right_team": teams == (team,),
            "asked_as_needed": state.world["asked"] == len(state.scenario.user_responses) - 1,
        }
        return Outcome(success=all(checks.values()), checks=checks, state={"teams": list(teams)})


def _error(reason: str) -> Message:
    return Message(role="tool", content=json.dumps({"error": reason}))
