"""One episode: agent and environment take turns until one of them ends it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.agents.transcript import ContextLengthExceeded, TokenTranscript
from grpo.environments.environment import Environment
from grpo.errors import GRPOError
from grpo.messages import Message
from grpo.policy.policy import Sampling, Session
from grpo.renderers.chat_template import Renderer
from grpo.rollout.timeouts import RolloutTimeout, Timeouts
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Outcome, Stop, Trajectory


class _EnvironmentFailure(Exception):
    """The environment raised in this episode."""


@contextmanager
def _environment_failures() -> Iterator[None]:
    """Turn an exception of the environment into a failed episode; a `GRPOError` stops the run."""
    try:
        yield
    except (GRPOError, RolloutTimeout):
        raise
    except Exception as failure:  # a failed conversation is data
        frame = traceback.extract_tb(failure.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}, {frame.name}"
        raise _EnvironmentFailure(f"{type(failure).__name__}: {failure} ({place})") from failure


async def run_episode(
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
    on_truncation: Literal["end", "continue"],
    timeouts: Timeouts,
) -> Trajectory:
    """Run one episode to its end; an environment failure or a timeout gives a failed trajectory.

    Failures of the agent, its policy or the renderer are failures of the computation and propagate.
    """
    transcript = TokenTranscript(session, renderer, sampling, max_context=max_context)
    rewards: list[float] = []
    stop: Stop = "failed"
    outcome: Outcome | None = None
    error: str | None = None

    async def converse() -> tuple[Stop, Outcome | None]:
        with _environment_failures():
            state = await timeouts.step(environment.reset(scenario, seed=sampling.seed), 0)
        system_prompt = "\n\n".join(filter(None, (environment.system_prompt, state.context)))
        opening = (Message(role="system", content=system_prompt),) if system_prompt else ()
        new_messages = (*opening, *state.history)
        stop: Stop
        cut_off: Message | None = None
        while True:
            number = state.turn_count + 1
            try:
                reply = await timeouts.turn(agent.respond(transcript, new_messages), number)
            except ContextLengthExceeded:
                stop = "truncated"
                break
            if reply.length_limited and on_truncation == "end":
                stop, cut_off = "truncated", reply.message
                break
            with _environment_failures():
                result = await timeouts.step(environment.step(state, reply.message), number)
            state = result.state
            if result.reward is not None:
                rewards.append(result.reward)
            if result.terminated or result.truncated:
                stop = "terminated" if result.terminated else "truncated"
                break
            assert result.response is not None
            new_messages = (result.response,)
        with _environment_failures():
            return stop, await timeouts.step(environment.conclude(state, cut_off), state.turn_count)

    try:
        stop, outcome = await timeouts.episode(converse)
    except RolloutTimeout as timeout:
        error = f"TimeoutError: {timeout}"
    except _EnvironmentFailure as failure:
        error = str(failure)
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
        turns=tuple(transcript.turns),
        token_ids=np.asarray(transcript.ids, dtype=np.int32),
        loss_mask=np.asarray(transcript.mask, dtype=np.bool_),
        sampler_logprobs=np.asarray(transcript.logprobs, dtype=np.float32),
        stop=stop,
        error=error,
        outcome=outcome,
        turn_rewards=tuple(rewards),
    )
