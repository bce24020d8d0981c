"""haproxy in front of several servers on loopback."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
"""Program, None where it is not installed: `apt-get install haproxy`."""
_CONFIGURATION = """
defaults
    mode http
    timeout connect {connect_s}s
    timeout client 60s
    timeout server 60s
    retries 3
    retry-on {retry_on}
    option redispatch 1
frontend clients
    bind 127.0.0.1:{port}
    option http-buffer-request
    default_backend servers
backend servers
    balance roundrobin
    option httpchk GET /ready
{servers}
"""


@contextmanager
def haproxy(
    port: int, servers: Iterable[int], folder: Path, *, retry_on: str, connect_s: int, look_ms: int
) -> Iterator[None]:
    """Forward a port to these servers, each request to the next one that is ready, while the block runs."""
    assert HAPROXY is not None
    lines = [f"    server s{k} 127.0.0.1:{k} check inter {look_ms}ms fall 1 rise 1" for k in servers]
    text = _CONFIGURATION.format(port=port, servers="\n".join(lines), retry_on=retry_on, connect_s=connect_s)
    (folder / "haproxy.cfg").write_text(text, encoding="utf-8")
    command = [HAPROXY, "-q", "-f", str(folder / "haproxy.cfg")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
