"""One episode: an agent and an environment take turns until one of them ends it."""

from __future__ import annotations

import asyncio
from typing import Literal

import numpy as np

from grpo.agents.agent import Agent
from grpo.environments.environment import Environment
from grpo.errors import GRPOError
from grpo.messages import Message
from grpo.policy.policy import Sampling, Session
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Outcome, Stop, Trajectory, Turn


class _Record:
    """The growing token record of an episode."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.mask: list[bool] = []
        self.logprobs: list[float] = []
        self.turns: list[Turn] = []

    def hear(self, messages: tuple[Message, ...], ids: list[int]) -> None:
        """Tokens that the policy reads; they belong to the last of the messages, the others have no span."""
        start, stop = len(self.ids), len(self.ids) + len(ids)
        self.turns += [Turn(message=message, start=start, stop=start) for message in messages[:-1]]
        self.turns.append(Turn(message=messages[-1], start=start, stop=stop))
        self.ids += ids
        self.mask += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def say(self, message: Message, ids: list[int], logprobs: list[float]) -> None:
        """Tokens that the policy said."""
        self.turns.append(Turn(message=message, start=len(self.ids), stop=len(self.ids) + len(ids)))
        self.ids += ids
        self.mask += [True] * len(ids)
        self.logprobs += logprobs


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
    timeout_s: float,
) -> Trajectory:
    """Play one episode to its end; what the world does wrong becomes a failed trajectory, not an exception.

    Failures of the policy or the renderer are failures of the computation and propagate.
    """
    record = _Record()
    stop: Stop = "failed"
    outcome: Outcome | None = None
    rewards: list[float] = []
    error: str | None = None
    try:
        async with asyncio.timeout(timeout_s):
            state = await environment.reset(scenario, seed=sampling.seed)
            heard = agent.brief(state.history)
            new_ids = agent.renderer.start(heard)
            while True:
                record.hear(heard if not record.turns else heard[-1:], new_ids)
                room = max_context - len(record.ids)
                if room < sampling.max_new_tokens:
                    stop = "truncated"
                    break
                message, said = await agent.respond(session, new_ids, sampling)
                record.say(message, said.token_ids, said.logprobs)
                cut = said.stop == "length"
                if cut and cut_turns == "end":
                    stop = "truncated"
                    break
                result = await environment.step(state, message)
                state = result.state
                if result.reward is not None:
                    rewards.append(result.reward)
                if result.terminated or result.truncated:
                    stop = "terminated" if result.terminated else "truncated"
                    break
                assert result.response is not None
                spoken = agent.brief(state.history[:-1])
                new_ids = agent.renderer.extend(spoken, (result.response,))
                if cut:  # the stop token that the policy did not say is read to it
                    new_ids = [agent.renderer.stop_id, *new_ids]
                heard = (result.response,)
        outcome = environment.verify(state)
    except GRPOError:
        raise
    except TimeoutError:
        stop, error = "failed", f"TimeoutError: the episode took longer than {timeout_s} s"
    except Exception as failure:  # a failed conversation is data
        stop, error = "failed", f"{type(failure).__name__}: {failure}"
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
        turn_rewards=tuple(rewards),
    )
