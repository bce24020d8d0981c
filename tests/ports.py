"""Ports of servers that a test starts later."""

from __future__ import annotations

import atexit
from contextlib import ExitStack

from grpo_local.managed_process import reserved_port

_reserved = ExitStack()
atexit.register(_reserved.close)


def own_port() -> int:
    """A port of 127.0.0.1 that no other program is given before this process ends.

    Between the choice of a free port and the start of the server, which takes seconds, another test or a connection
    of this machine may get that port. Nothing answers at the port until a server listens on it.
    """
    return _reserved.enter_context(reserved_port())
