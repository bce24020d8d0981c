"""Run a Python module until the parent process ends: `python -m grpo_local.with_parent MODULE ARGUMENTS`.

The parent holds the other end of standard input and writes nothing. When the parent ends, the kernel closes that end,
also if the parent was killed and could not stop anything. If the parent has forked, its child holds that end as well.
So this process also looks at the id of its parent every second. It then gets SIGTERM, as if the parent had stopped it,
and ends after `GRACE_S` at the latest. A signal for the death of the parent (`PR_SET_PDEATHSIG`) is not used, because
Linux sends it when the thread that has started the process ends, and other systems do not have it.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

GRACE_S = 5.0
"""Time between SIGTERM and the end of this process."""
_LOOK_S = 1.0
_ending = threading.Lock()


def end_with_parent() -> None:
    """End this process when standard input is closed, or when its parent is another process."""
    threading.Thread(target=_watch_input, name="parent's input", daemon=True).start()
    threading.Thread(target=_watch_parent, args=(os.getppid(),), name="parent", daemon=True).start()


def _watch_input() -> None:
    while os.read(0, 4096):
        pass
    _end()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    _end()


def _end() -> None:
    if not _ending.acquire(blocking=False):  # a second signal would end it at once
        return
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    end_with_parent()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
