"""One episode: agent and environment take turns until one of them ends it.

An episode can also go on from a turn of another one (`BranchPoint`), as branching rollouts do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Literal

import numpy as np

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.agents.transcript import ContextLengthExceeded, Reply, TokenTranscript
from grpo.copies import ScenarioCopies
from grpo.environments.environment import Environment, EnvironmentState, StepResult
from grpo.errors import ConfigError, OutcomeError
from grpo.messages import Message, ToolCall
from grpo.policy.policy import Sampling, Session
from grpo.renderers.chat_template import Renderer
from grpo.rollout.timeouts import RolloutTimeout, Timeouts
from grpo.strict_json import encode
from grpo.trajectories import Branch, Outcome, Stop, Trajectory
from grpo.user_failures import UserCodeError, current_scenario, shown, user_code


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
    rewards: list[float] = [] if start is None else list(start.rewards)
    states: list[str | None] = [] if start is None else list(start.states)
    stop: Stop = "failed"
    outcome: Outcome | None = None
    error: str | None = None

    def environment_code() -> user_code:
        return user_code("", passes=lambda error: isinstance(error, RolloutTimeout))

    def agent_code() -> user_code:
        return user_code(
            "the agent", passes=lambda error: isinstance(error, RolloutTimeout) or transcript.caused(error)
        )

    async def begin() -> tuple[EnvironmentState, tuple[Message, ...]]:
        with environment_code():
            if start is not None:
                return _forked(environment, start.state), start.new_messages
            state = await timeouts.step(environment.reset(copies.copy(), seed=sampling.seed), 0)
            _check(state, EnvironmentState, "what reset returned")
            _check(state.turn_count, int, "a state's turn_count")
            for message in state.history:
                _check_message(message, "a state's history")
            _check_texts(environment.system_prompt, state.context)
        system_prompt = "\n\n".join(filter(None, (environment.system_prompt, state.context)))
        opening = (Message(role="system", content=system_prompt),) if system_prompt else ()
        return state, (*opening, *state.history)

    async def converse() -> tuple[Stop, Outcome | None]:
        state, new_messages = await begin()
        stop: Stop
        cut_off: Message | None = None
        while True:
            number = state.turn_count + 1
            with environment_code():
                digest = environment.state_digest(state)
                _check_optional_text(digest, "what state_digest returned")
            try:
                with agent_code():
                    reply = await timeouts.turn(agent.respond(transcript, new_messages), number)
                    _check(reply, Reply, "what respond returned")
            except ContextLengthExceeded:
                stop = "truncated"
                break
            states.append(digest)
            if reply.length_limited and on_truncation == "end":
                stop, cut_off = "truncated", reply.message
                break
            with environment_code():
                result = await timeouts.step(environment.step(state, reply.message), number)
                _check(result, StepResult, "what step returned")
                state = result.state
                _check(state, EnvironmentState, "a step's state")
                _check(state.turn_count, int, "a state's turn_count")
                if result.reward is not None:
                    rewards.append(_finite(result.reward))
                ended = bool(result.terminated or result.truncated)
                if not ended:
                    assert result.response is not None, "step returned neither a response nor an end"
                    _check_message(result.response, "a step's response")
                    new_messages = (result.response,)
                    if points is not None:
                        points.append(
                            BranchPoint(
                                sample=sample,
                                transcript=transcript.resume(None, sampling, read=transcript.read),
                                state=_forked(environment, state),
                                new_messages=new_messages,
                                rewards=tuple(rewards),
                                states=tuple(states),
                            )
                        )
            if ended:
                stop = "terminated" if result.terminated else "turn_limit"
                break
        with environment_code():
            outcome = await timeouts.step(environment.conclude(state, cut_off), state.turn_count)
            if outcome is not None:
                _check_outcome(outcome)
                outcome = outcome.copied()
        return stop, outcome

    played = current_scenario.set(scenario.id)
    try:
        stop, outcome = await timeouts.episode(converse)
    except RolloutTimeout as timeout:
        error = f"TimeoutError: {timeout}"
    except (UserCodeError, OutcomeError) as failure:
        error = str(failure)
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
        turn_rewards=tuple(rewards),
        turn_states=() if None in states else tuple(filter(None, states)),
        branch=None if start is None else Branch(sample=start.sample, tokens=len(start.transcript.ids)),
    )


def _forked(environment: Environment, state: EnvironmentState) -> EnvironmentState:
    """Copy of a state. Raises `ConfigError` if the environment cannot copy it, because no branch could be played."""
    try:
        copied = environment.fork(state)
        _check(copied, EnvironmentState, "what fork returned")
        return copied
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"rollout.trees: {type(environment).__name__}.fork cannot copy a state: {error}. Write a fork that can, or "
            "leave trees out"
        ) from error


def _check(value: object, kind: type | tuple[type, ...], what: str) -> None:
    """Raise `TypeError` if the user's code returned a value of another type as `what`."""
    if not isinstance(value, kind):
        expected = (kind[0] if isinstance(kind, tuple) else kind).__name__
        raise TypeError(f"{what} is {shown(value)}. Return a value of type {expected}")


def _check_message(message: Message, what: str) -> None:
    """Raise `TypeError`, `UnicodeEncodeError` or `NotStrictJSON` if a message or a part of it cannot be stored."""
    _check(message, Message, what)
    _check_texts(message.content)
    for part in (message.malformed, message.reasoning):
        _check_optional_text(part, f"a part of {what}")
    for call in message.tool_calls:
        _check(call, ToolCall, f"a call of {what}")
        _check_texts(call.name)
        encode(dict(call.arguments))


def _check_outcome(outcome: Outcome) -> None:
    """Raise `TypeError`, `UnicodeEncodeError` or `NotStrictJSON` if a part of an outcome cannot be stored."""
    _check(outcome, Outcome, "the outcome")
    _check(outcome.checks, Mapping, "the checks of an outcome")
    if outcome.success is not None:
        _check(outcome.success, (bool, np.bool_), "the success of an outcome")
    _check_texts(*outcome.checks, *outcome.unjudged)
    for name, value in outcome.checks.items():
        _check(value, (bool, np.bool_), f"the check {name}")
    if outcome.reward is not None:
        _finite(outcome.reward)
    encode(dict(outcome.state))


def _finite(reward: object) -> float:
    """The number of a reward. Raises `TypeError` or `ValueError` if no learning could use it."""
    if isinstance(reward, str):
        raise TypeError("the reward of a step is a text. Return a finite number, or None")
    number = float(reward)  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise ValueError(f"the reward of a step is {number}. Return a finite number, or None")
    return number


def _check_texts(*texts: str) -> None:
    """Raise `UnicodeEncodeError` for a text that has half of a surrogate pair, which no tokenizer reads."""
    for text in texts:
        _check(text, str, "a text")
        text.encode()


def _check_optional_text(text: str | None, what: str) -> None:
    _check(text, (str, NoneType), what)
    _check_texts(text or "")
