"""End of a child process that a server asks over pipes."""

from __future__ import annotations

import subprocess
from contextlib import suppress

_KILLED_S = 5.0


def end_child(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, wait for its end, and close its pipes."""
    process.kill()
    process.wait(_KILLED_S)
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(OSError):  # closing flushes the buffer, and its reader has ended
            pipe.close()
