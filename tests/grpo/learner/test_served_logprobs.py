"""The real tiny model serves conversations; their log-probabilities are computed again with right and wrong weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from grpo.errors import AddressError, RatioError
from grpo.learner.served_logprobs import check_served
from grpo.log.folder import Problem, ServedLog
from grpo.log.records import Record, ServedTurn
from grpo.policy.transformers.model import TransformersPolicy
from tests.grpo.serving.chat_servers import chat_server, load_clerk

CONVERSATIONS = 20


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record | Problem]:
    """Log of 20 conversations of two turns at two temperatures, and of one turn from a part of the vocabulary."""
    folder = tmp_path_factory.mktemp("served")
    with chat_server(folder) as server:
        client = server.client()

        def talk(number: int) -> None:
            known = {}
            for content in ("Hello, where is my order 1234?", "Thanks."):
                reply = client.chat.completions.create(
                    model="clerk",
                    messages=[{"role": "user", "content": content}],
                    temperature=(0.7, 1.3)[number % 2],
                    tools=[],
                    tool_choice="none",
                    extra_body=known,
                )
                known = {"conversation_id": reply.model_extra["conversation_id"]}  # type: ignore[index]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(talk, range(CONVERSATIONS)))
        client.chat.completions.create(model="clerk", messages=[{"role": "user", "content": "Hello"}], top_p=0.5)
    return list(ServedLog(folder / "log").read())


def check(records: Sequence[Record | Problem], load: Callable[[str], TransformersPolicy], turns: int = 1000) -> object:
    return check_served(records, load, model="clerk", turns=turns, seed=3)


def right(version: str) -> TransformersPolicy:
    assert version == "clerk/1"
    return load_clerk()


def test_served_turns_have_the_log_probabilities_of_their_version(records: list[Record | Problem]):
    """Both turns of 20 conversations; the one without log-probabilities is counted."""
    result = check_served(records, right, model="clerk", turns=1000, seed=3)
    sampled = [entry for entry in records if isinstance(entry, ServedTurn)]
    assert result.turns == 2 * CONVERSATIONS
    assert result.tokens == sum(int(turn.loss_mask.sum()) for turn in sampled if turn.top_p == 1.0)
    assert 0 < result.difference <= 1e-4
    assert list(result.unchecked.values()) == [1]
    assert check_served(records, right, model="clerk", turns=7, seed=3).turns == 7
    assert check_served(records, right, model="cler", turns=7, seed=3).turns == 0


@pytest.mark.parametrize("number", range(0, 20, 4))
def test_one_changed_tensor_is_noticed_within_twenty_turns(records: list[Record | Problem], number: int):
    """A weight matrix that is 1 % larger, under the digest of the right one."""
    policy = right("clerk/1")
    matrices = [weight for weight in policy.model.parameters() if weight.ndim == 2]
    with torch.no_grad():
        matrices[number % len(matrices)].mul_(1.01)
    with pytest.raises(RatioError, match=r"turn \w+ of conversation \w+ claims clerk/1, and differs") as caught:
        check(records, lambda _: policy)
    assert int(re.search(r"turn (\d+) of those checked", str(caught.value))[1]) <= 20  # type: ignore[index]


def test_a_turn_of_another_version_is_noticed_at_once(records: list[Record | Problem]):
    """Its weights are not those that the version has; and the remedy is named."""
    claimed = [replace(turn, policy_hash="0" * 16) for turn in records if isinstance(turn, ServedTurn)]
    with pytest.raises(
        RatioError, match=r"has weights 0000000000000000, and the version .*, turn 1 of .*Restart grpo serve"
    ):
        check(claimed, right)


def test_a_changed_log_is_noticed(records: list[Record | Problem]):
    """One log-probability of one turn, by a thousandth; NaN does not pass for a small difference."""
    turn = next(entry for entry in records if isinstance(entry, ServedTurn) and entry.top_p == 1.0)
    changed = np.array(turn.sampler_logprobs)
    changed[np.flatnonzero(turn.loss_mask)[-1]] += 1e-3
    others = [entry for entry in records if entry is not turn]
    with pytest.raises(RatioError, match=f"turn {turn.id} .* differs from its weights by 0.001 nats in 1 of"):
        check([*others, replace(turn, sampler_logprobs=changed)], right)


def test_turns_of_a_version_that_is_gone_are_counted(records: list[Record | Problem]):
    def gone(version: str) -> TransformersPolicy:
        raise AddressError(f"no version {version}")

    result = check_served(records, gone, model="clerk", turns=1000, seed=3)
    assert (result.turns, result.unchecked["clerk/1 is not registered any more"]) == (0, 2 * CONVERSATIONS)
