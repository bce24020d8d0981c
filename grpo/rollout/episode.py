"""One episode: agent and environment take turns until one of them ends it.

    reset ─→ first messages ─→ the agent replies ─→ the environment steps ─→ new messages ─→ … ─→ conclude ─→ Trajectory

An episode can also go on from a turn of another one (`BranchPoint`), as branching rollouts do. `run_episode` is called
for each episode of a rollout. It fails the episode, and not the rollout, if code of the user fails. What this code
returns is checked in `grpo.rollout.returned`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

import numpy as np

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.agents.transcript import ContextLengthExceeded, Reply, TokenTranscript
from grpo.copies import ScenarioCopies
from grpo.environments.environment import Environment, EnvironmentState, StepResult
from grpo.errors import ConfigError, OutcomeError
from grpo.messages import Message
from grpo.policy.policy import Sampling, Session
from grpo.renderers.chat_template import Renderer
from grpo.rollout.returned import (
    check_message,
    check_optional_text,
    check_outcome,
    check_texts,
    check_type,
    finite_reward,
)
from grpo.rollout.timeouts import RolloutTimeout, Timeouts
from grpo.trajectories import Branch, Outcome, Stop, Trajectory
from grpo.user_failures import UserCodeError, current_scenario, user_code

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchPoint:
    """An episode before one of the agent's turns, from which another episode can go on."""

    sample: int
    """Sample of the episode."""
    transcript: TokenTranscript
    state: EnvironmentState
    new_messages: tuple[Message, ...]
    """Messages that the agent has not answered yet."""
    rewards: tuple[float, ...]
    """Rewards of the turns so far."""
    states: tuple[str | None, ...]
    """Digests of the states of the turns so far."""


async def run_episode(
    agent: MultiTurnAgent,
    environment: Environment,
    copies: ScenarioCopies,
    session: Session,
    renderer: Renderer,
    sampling: Sampling,
    *,
    sample: int,
    policy_hash: str,
    max_context: int,
    on_truncation: Literal["end", "continue"],
    timeouts: Timeouts,
    start: BranchPoint | None = None,
    points: list[BranchPoint] | None = None,
) -> Trajectory:
    """Run one episode to its end. If its environment, agent or renderer fails or times out, the episode is failed.

    It goes on from `start`, the tokens of which the session has read, or else begins with the environment's reset. Each
    turn of the agent after the first is appended to `points`. The caller closes the session.

    The environment gets its own copy of the scenario, and the trajectory keeps a copy of the outcome, so that an
    environment that changes them changes no other episode.

    Failures of the policy propagate, because they are failures of the computation. A `GRPOError` propagates too,
    because it names a fault of the run.
    """
    scenario = copies.scenario
    if start is None:
        transcript = TokenTranscript(session, renderer, sampling, max_context=max_context)
    else:
        transcript = start.transcript.resume(session, sampling, read=start.transcript.read)
    episode = _Episode(
        agent=agent,
        environment=environment,
        copies=copies,
        transcript=transcript,
        sampling=sampling,
        sample=sample,
        on_truncation=on_truncation,
        timeouts=timeouts,
        start=start,
        points=points,
        rewards=[] if start is None else list(start.rewards),
        states=[] if start is None else list(start.states),
    )
    stop: Stop = "failed"
    outcome: Outcome | None = None
    error: str | None = None
    played = current_scenario.set(scenario.id)
    try:
        stop, outcome = await timeouts.episode(episode.converse)
    except RolloutTimeout as timeout:
        error = f"TimeoutError: {timeout}"
        await episode.abandon()
    except (UserCodeError, OutcomeError) as failure:
        error = str(failure)
        await episode.abandon()
    finally:
        current_scenario.reset(played)
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
        turn_rewards=tuple(episode.rewards),
        turn_states=() if None in episode.states else tuple(state for state in episode.states if state is not None),
        branch=None if start is None else Branch(sample=start.sample, tokens=len(start.transcript.ids)),
    )


@dataclass(slots=True, kw_only=True)
class _Episode:
    """Episode that is played: its fixed parts, and what its turns have added so far.

    `converse` calls the other methods in their order. If one of them raises, `transcript`, `rewards` and `states` still
    have all turns before, and the trajectory of the failed episode shows them.
    """

    agent: MultiTurnAgent
    environment: Environment
    copies: ScenarioCopies
    transcript: TokenTranscript
    sampling: Sampling
    sample: int
    on_truncation: Literal["end", "continue"]
    timeouts: Timeouts
    start: BranchPoint | None
    points: list[BranchPoint] | None
    rewards: list[float]
    """Rewards of the environment's steps so far."""
    states: list[str | None]
    """Digest of the state before each turn of the agent so far."""
    state: EnvironmentState | None = None
    """The last state. None before the first message."""

    async def converse(self) -> tuple[Stop, Outcome | None]:
        """Play from the first messages to the end. Returns why the episode ended, and its outcome."""
        state, new_messages = await self._begin()
        while True:
            self.state = state
            reply = await self._reply(state, new_messages)
            if reply is None:
                if self.points:
                    self.points.pop()  # no turn begins there
                return "truncated", await self._conclude(state)
            if reply.length_limited and self.on_truncation == "end":
                return "truncated", await self._conclude(state, cut_off=reply.message)
            state, new_messages, stop = await self._step(state, reply.message)
            if stop is not None:
                return stop, await self._conclude(state)
            if self.points is not None:
                self.points.append(self._branch_point(state, new_messages))

    async def _begin(self) -> tuple[EnvironmentState, tuple[Message, ...]]:
        """State and messages before the agent's first turn: from the environment's reset, or from `start`."""
        with self._environment_code():
            if self.start is not None:
                return _forked(self.environment, self.start.state), self.start.new_messages
            state = await self.timeouts.step(self.environment.reset(self.copies.copy(), seed=self.sampling.seed), 0)
            check_type(state, EnvironmentState, "what reset returned")
            check_type(state.turn_count, int, "a state's turn_count")
            for message in state.history:
                check_message(message, "a state's history")
            check_texts(self.environment.system_prompt, state.context)
        system_prompt = "\n\n".join(filter(None, (self.environment.system_prompt, state.context)))
        opening = (Message(role="system", content=system_prompt),) if system_prompt else ()
        return state, (*opening, *state.history)

    async def _reply(self, state: EnvironmentState, new_messages: tuple[Message, ...]) -> Reply | None:
        """The agent's reply to new messages. None if the context has no room for another turn."""
        with self._environment_code():
            digest = self.environment.state_digest(state)
            check_optional_text(digest, "what state_digest returned")
        try:
            with self._agent_code():
                reply = await self.timeouts.turn(
                    self.agent.respond(self.transcript, new_messages), state.turn_count + 1
                )
                check_type(reply, Reply, "what respond returned")
        except ContextLengthExceeded:
            return None
        self.states.append(digest)
        return reply

    async def _step(
        self, state: EnvironmentState, action: Message
    ) -> tuple[EnvironmentState, tuple[Message, ...], Stop | None]:
        """State after the environment's answer to a reply, its new messages, and why the episode ends if it does."""
        with self._environment_code():
            result = await self.timeouts.step(self.environment.step(state, action), state.turn_count + 1)
            check_type(result, StepResult, "what step returned")
            check_type(result.state, EnvironmentState, "a step's state")
            check_type(result.state.turn_count, int, "a state's turn_count")
            if result.reward is not None:
                self.rewards.append(finite_reward(result.reward))
            if result.terminated or result.truncated:
                return result.state, (), "terminated" if result.terminated else "turn_limit"
            if result.response is None or result.state.done:
                what = "a state that is done" if result.state.done else "no response"
                raise TypeError(f"step returned {what}, and neither terminated=True nor truncated=True in StepResult")
            check_message(result.response, "a step's response")
            return result.state, (result.response,), None

    def _branch_point(self, state: EnvironmentState, new_messages: tuple[Message, ...]) -> BranchPoint:
        """Copy of the episode as it is now, from which another episode can go on."""
        with self._environment_code():
            return BranchPoint(
                sample=self.sample,
                transcript=self.transcript.resume(None, self.sampling, read=self.transcript.read),
                state=_forked(self.environment, state),
                new_messages=new_messages,
                rewards=tuple(self.rewards),
                states=tuple(self.states),
            )

    async def _conclude(self, state: EnvironmentState, cut_off: Message | None = None) -> Outcome | None:
        """The environment's outcome, as a copy. `cut_off` is the last reply if it reached its limit of tokens."""
        with self._environment_code():
            outcome = await self.timeouts.step(self.environment.conclude(state, cut_off), state.turn_count)
            if outcome is None:
                return None
            check_outcome(outcome)
            return outcome.copied()

    async def abandon(self) -> None:
        """Let the environment release what the failed episode holds. If this fails too, a warning says so."""
        if self.state is None:
            return
        try:
            with self._environment_code():
                await self.timeouts.step(self.environment.abandon(self.state), self.state.turn_count)
        except (RolloutTimeout, UserCodeError) as failure:
            logger.warning("episode %s %d is not released: %s", self.copies.scenario.id, self.sample, failure)

    def _environment_code(self) -> user_code:
        return user_code("", passes=lambda error: isinstance(error, RolloutTimeout))

    def _agent_code(self) -> user_code:
        return user_code(
            "the agent", passes=lambda error: isinstance(error, RolloutTimeout) or self.transcript.caused(error)
        )


def _forked(environment: Environment, state: EnvironmentState) -> EnvironmentState:
    """Copy of a state. Raises `ConfigError` if the environment cannot copy it, because no branch could be played."""
    try:
        copied = environment.fork(state)
        check_type(copied, EnvironmentState, "what fork returned")
        return copied
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"rollout.trees: {type(environment).__name__}.fork cannot copy a state: {error}. Write a fork that can, or "
            "leave trees out"
        ) from error
