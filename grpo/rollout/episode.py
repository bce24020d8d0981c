"""One episode: an agent and an environment take turns until one of them ends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np

from grpo.agents.floor import Floor, OutOfRoom
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.environments.environment import Environment
from grpo.errors import GRPOError
from grpo.messages import Message
from grpo.policy.policy import Sampling, Session
from grpo.renderer import Renderer
from grpo.rollout.deadlines import Deadlines, Overdue
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Outcome, Stop, Trajectory


class _Broken(Exception):
    """The world failed this conversation."""


@contextmanager
def _world() -> Iterator[None]:
    """What the environment does wrong fails the conversation; only what it says of the run stops the run."""
    try:
        yield
    except (GRPOError, Overdue):
        raise
    except Exception as failure:  # a failed conversation is data
        raise _Broken(f"{type(failure).__name__}: {failure}") from failure


async def play(
    agent: MultiTurnAgent,
    environment: Environment,
    scenario: Scenario,
    session: Session,
    renderer: Renderer,
    sampling: Sampling,
    *,
    sample: int,
    policy_hash: str,
    max_context: int,
    cut_turns: Literal["end", "go_on"],
    deadlines: Deadlines,
) -> Trajectory:
    """Play one episode to its end; what the world does wrong, or what is late, becomes a failed trajectory.

    Failures of the agent, its policy or the renderer are failures of the computation and propagate.
    """
    floor = Floor(session, renderer, sampling, max_context=max_context)
    rewards: list[float] = []
    stop: Stop = "failed"
    outcome: Outcome | None = None
    error: str | None = None

    async def converse() -> tuple[Stop, Outcome | None]:
        with _world():
            state = await deadlines.step(environment.reset(scenario, seed=sampling.seed), 0)
        told = "\n\n".join(filter(None, (environment.system_prompt, state.context)))
        opening = (Message(role="system", content=told),) if told else ()
        heard = (*opening, *state.history)
        ended: Stop
        while True:
            number = state.turn_count + 1
            try:
                reply = await deadlines.turn(agent.respond(floor, heard), number)
            except OutOfRoom:
                ended = "truncated"
                break
            if reply.cut and cut_turns == "end":
                ended = "truncated"
                break
            with _world():
                result = await deadlines.step(environment.step(state, reply.message), number)
            state = result.state
            if result.reward is not None:
                rewards.append(result.reward)
            if result.terminated or result.truncated:
                ended = "terminated" if result.terminated else "truncated"
                break
            assert result.response is not None
            heard = (result.response,)
        with _world():
            return ended, environment.verify(state)

    try:
        stop, outcome = await deadlines.episode(converse)
    except Overdue as late:
        error = f"TimeoutError: {late}"
    except _Broken as broken:
        error = str(broken)
    finally:
        session.close()
    return Trajectory(
        scenario_id=scenario.id,
        scenario_hash=scenario.hash,
        category=scenario.metadata.category,
        difficulty=scenario.metadata.difficulty,
        sample=sample,
        seed=sampling.seed,
        policy_hash=policy_hash,
        renderer_hash=renderer.hash,
        temperature=sampling.temperature,
        turns=tuple(floor.turns),
        token_ids=np.asarray(floor.ids, dtype=np.int32),
        loss_mask=np.asarray(floor.mask, dtype=np.bool_),
        sampler_logprobs=np.asarray(floor.logprobs, dtype=np.float32),
        stop=stop,
        error=error,
        outcome=outcome,
        turn_rewards=tuple(rewards),
    )
