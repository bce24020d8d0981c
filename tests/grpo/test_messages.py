from __future__ import annotations

import pytest

from grpo.errors import DataError
from grpo.messages import Message


def test_an_unknown_role_is_refused():
    """A role outside the four is an error that names them."""
    with pytest.raises(DataError, match=r"'robot'.*system, user, assistant, tool"):
        Message(role="robot", content="x")  # type: ignore[arg-type]
