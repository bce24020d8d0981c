"""Checks that the servers of judges and of the simulated user's model answer and accept the key."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx

from grpo.config.gates import SafetyGate
from grpo.config.rewards import JudgeSettings
from grpo.environments.users.user_model import check_address
from grpo.errors import GRPOError, PolicyError
from grpo.http_client import ReplyRefused, get
from grpo.policy.catalog import CHAT, STUB, is_weights, open_policy
from grpo.policy.weights.sources import model_description, model_plan
from grpo.preflight.facts import Facts
from grpo.rewards.catalog import make_reward
from grpo.rewards.judge.ruler import RulerReward

if TYPE_CHECKING:
    from grpo.policy.openai_endpoint import OpenAIEndpoint

_TIMEOUT_S = 3.0
_REFUSED = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)


def servers(facts: Facts) -> Iterator[Exception]:
    """Ask the server of each judge for its models. It has to answer and to accept the key."""
    config = facts.given
    judges: list[JudgeSettings] = [] if config.judge is None else [config.judge]
    judges += [gate.judge for gate in config.gates if isinstance(gate, SafetyGate) and gate.judge is not None]
    for component in config.reward:
        if component.kind == RulerReward.name:
            try:
                reward = make_reward(component)
            except GRPOError:  # named by the check of rewards
                continue
            assert isinstance(reward, RulerReward)
            if reward.fallback is None:
                judges.append(reward.settings)
    for settings in {judge.model: judge for judge in judges}.values():
        try:
            from grpo.rewards.judge.client import JudgeClient  # openai is an extra

            ask(JudgeClient(settings).server, setting="the judge")
        except (GRPOError, ConnectionError, TimeoutError) as error:
            yield error


def user_model(facts: Facts) -> Iterator[Exception]:
    """Ask the server of the simulated user's model, or find its weights."""
    address = getattr(facts.given.environment, "model", None)
    if address is None:
        return
    check_address(address)
    if is_weights(address):
        model_plan(address)
    elif address.partition("+")[0] == CHAT:
        from grpo.policy.openai_endpoint import OpenAIEndpoint

        ask(OpenAIEndpoint.from_address(address.partition("+")[2]), setting="environment.model")
    yield from ()


def user_prompts(facts: Facts) -> Iterator[Exception]:
    """Read the chat template of the simulated user's weights, or its script."""
    address = getattr(facts.given.environment, "model", None)
    if address is None:
        return
    if is_weights(address):
        from grpo.policy.renderer import make_renderer
        from grpo.policy.tokenizer import load_tokenizer

        with model_description(model_plan(address).address) as described:
            make_renderer(load_tokenizer(described.tokenizer))
    elif address.partition("://")[0] == STUB:
        open_policy(address)
    yield from ()


def ask(endpoint: OpenAIEndpoint, *, setting: str) -> None:
    """Ask a server for its models. Any other answer than a refused key is accepted, because many servers have no list.

    Raises `ConnectionError` if the server does not answer, and `PolicyError` if it refuses the key.
    """
    key = os.environ.get(endpoint.key, "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        response = get(f"{endpoint.base_url}/models", headers=headers, seconds=_TIMEOUT_S)
    except ReplyRefused:  # the server answers, with a long list
        return
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ConnectionError(
            f"{setting} {endpoint.address} does not answer: {endpoint.redact(str(error)) or type(error).__name__}. "
            "Start it, or correct its address"
        ) from None
    if response.status_code in _REFUSED:
        raise PolicyError(
            f"{setting} {endpoint.address} refuses the key in {endpoint.key} (HTTP {response.status_code}). Set one "
            "that may use this model"
        )
