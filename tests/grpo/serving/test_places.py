"""Places of requests in conversations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from grpo.serving.access.callers import Caller
from grpo.serving.protocol.api_errors import APIError, overloaded
from grpo.serving.protocol.chat_request import ChatRequest
from grpo.serving.requests.conversations import Conversations
from grpo.serving.requests.digested_request import DigestedRequest
from grpo.serving.requests.places import Places
from grpo.serving.requests.turn_store import LoadedTurns


def test_a_request_that_was_read_when_the_last_version_was_lost_is_sent_again():
    """503 with Retry-After, as for a request that comes afterwards, and not an error of the server."""

    def none(model: str) -> NoReturn:
        raise overloaded("no version is loaded", retry_after_s=2.0)

    versions: Any = SimpleNamespace(loaded=())
    places = Places(Conversations(max_tokens=10, new_id=lambda owner: "c"), versions, none)
    request = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "x"}]})
    caller = Caller(name="k", key_hash="h", scopes=frozenset())
    with pytest.raises(APIError) as error:
        places.find(request, caller, DigestedRequest.of(request, ()), LoadedTurns())
    assert error.value.status == 503
