"""The program behind `commands.program`: hands its arguments, environment and streams to the tests, and waits.

`python -I -S client.py SOCKET ARGUMENTS` needs the standard library alone, and is there in hundredths of a second.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path


def main() -> None:
    """Have the command run, pass signals on to it, and end as it ended."""
    umask = os.umask(0o077)
    request = {"arguments": sys.argv[2:], "environment": dict(os.environ), "cwd": str(Path.cwd()), "umask": umask}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tests:
        tests.connect(sys.argv[1])
        socket.send_fds(tests, [b"0"], [0, 1, 2])
        with tests.makefile("rw", encoding="utf-8") as lines:
            lines.write(f"{json.dumps(request)}\n")
            lines.flush()
            process = int(lines.readline())
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, lambda received, _: os.kill(process, received))
            code = int(lines.readline())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
