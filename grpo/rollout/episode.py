"""One episode: an agent and an environment take turns until one of them ends it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np

from grpo.agents.agent import Agent
from grpo.environments.environment import Environment
from grpo.errors import GRPOError
from grpo.messages import Message
from grpo.policy.policy import Generation, Prompt, Sampling, Session
from grpo.rollout.deadlines import Deadlines, Overdue
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Outcome, Stop, Trajectory, Turn


class _Record:
    """The growing token record of an episode."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.mask: list[bool] = []
        self.logprobs: list[float] = []
        self.turns: list[Turn] = []
        self.rewards: list[float] = []

    def hear(self, messages: tuple[Message, ...], ids: Sequence[int]) -> None:
        """Tokens that the policy reads; they belong to the last of the messages, the others have no span."""
        start, stop = len(self.ids), len(self.ids) + len(ids)
        self.turns += [Turn(message=message, start=start, stop=start) for message in messages[:-1]]
        self.turns.append(Turn(message=messages[-1], start=start, stop=stop))
        self.ids += ids
        self.mask += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def say(self, message: Message, said: Generation) -> None:
        """Tokens that the policy said; NaN where it cannot tell how likely they were."""
        count = len(said.token_ids)
        self.turns.append(Turn(message=message, start=len(self.ids), stop=len(self.ids) + count))
        self.ids += said.token_ids
        self.mask += [True] * count
        self.logprobs += [math.nan] * count if said.logprobs is None else said.logprobs


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
    agent: Agent,
    environment: Environment,
    scenario: Scenario,
    session: Session,
    sampling: Sampling,
    *,
    sample: int,
    policy_hash: str,
    max_context: int,
    cut_turns: Literal["end", "go_on"],
    deadlines: Deadlines,
) -> Trajectory:
    """Play one episode to its end; what the world does wrong, or what is late, becomes a failed trajectory.

    Failures of the policy or the renderer are failures of the computation and propagate.
    """
    record = _Record()
    stop: Stop = "failed"
    outcome: Outcome | None = None
    error: str | None = None

    async def converse() -> tuple[Stop, Outcome | None]:
        with _world():
            state = await deadlines.step(environment.reset(scenario, seed=sampling.seed), 0)
        heard = agent.brief(state.history, state.context)
        prompt = Prompt(new_ids=agent.renderer.start(heard), messages=heard)
        ended: Stop
        while True:
            record.hear(heard if not record.turns else heard[-1:], prompt.new_ids)
            if max_context - len(record.ids) < sampling.max_new_tokens:
                ended = "truncated"
                break
            number = state.turn_count + 1
            message, said = await deadlines.turn(agent.respond(session, prompt, sampling), number)
            record.say(message, said)
            cut = said.stop == "length"
            if cut and cut_turns == "end":
                ended = "truncated"
                break
            with _world():
                result = await deadlines.step(environment.step(state, message), number)
            state = result.state
            if result.reward is not None:
                record.rewards.append(result.reward)
            if result.terminated or result.truncated:
                ended = "terminated" if result.terminated else "truncated"
                break
            assert result.response is not None
            heard = agent.brief(state.history, state.context)
            new_ids = agent.renderer.extend(heard[:-1], (result.response,))
            if cut:  # the stop token that the policy did not say is read to it
                new_ids = [agent.renderer.stop_id, *new_ids]
            prompt = Prompt(new_ids=new_ids, messages=heard)
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
        renderer_hash=agent.renderer.hash,
        temperature=sampling.temperature,
        turns=tuple(record.turns),
        token_ids=np.asarray(record.ids, dtype=np.int32),
        loss_mask=np.asarray(record.mask, dtype=np.bool_),
        sampler_logprobs=np.asarray(record.logprobs, dtype=np.float32),
        stop=stop,
        error=error,
        outcome=outcome,
        turn_rewards=tuple(record.rewards),
    )
