"""One episode: an agent and an environment take turns until one of them ends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


class _Broken(Exception):
    """The world failed this conversation."""


@contextmanager
def _world() -> Iterator[None]:
    """What the environment does wrong fails the conversation; only what it says of the run stops the run."""
    try:
        yield
    except (GRPOError, RolloutTimeout):
        raise
    except Exception as failure:  # a failed conversation is data
        raise _Broken(f"{type(failure).__name__}: {failure}") from failure


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
    """Play one episode to its end; what the world does wrong, or what is late, becomes a failed trajectory.

    Failures of the agent, its policy or the renderer are failures of the computation and propagate.
    """
    transcript = TokenTranscript(session, renderer, sampling, max_context=max_context)
    rewards: list[float] = []
    stop: Stop = "failed"
    outcome: Outcome | None = None
    error: str | None = None

    async def converse() -> tuple[Stop, Outcome | None]:
        with _world():
            state = await timeouts.step(environment.reset(scenario, seed=sampling.seed), 0)
        told = "\n\n".join(filter(None, (environment.system_prompt, state.context)))
        opening = (Message(role="system", content=told),) if told else ()
        heard = (*opening, *state.history)
        ended: Stop
        while True:
            number = state.turn_count + 1
            try:
                reply = await timeouts.turn(agent.respond(transcript, heard), number)
            except ContextLengthExceeded:
                ended = "truncated"
                break
            if reply.cut and on_truncation == "end":
                ended = "truncated"
                break
            with _world():
                result = await timeouts.step(environment.step(state, reply.message), number)
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
        stop, outcome = await timeouts.episode(converse)
    except RolloutTimeout as late:
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
        turns=tuple(transcript.turns),
        token_ids=np.asarray(transcript.ids, dtype=np.int32),
        loss_mask=np.asarray(transcript.mask, dtype=np.bool_),
        sampler_logprobs=np.asarray(transcript.logprobs, dtype=np.float32),
        stop=stop,
        error=error,
        outcome=outcome,
        turn_rewards=tuple(rewards),
    )
