"""A server of the tiny model in a process of its own, whose memory is that of the server alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from grpo.config.serving import EngineSettings, ServiceSettings
from tests.grpo.serving.chat_servers import chat_server

FRAME_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A running server."""

    url: str
    authorization: dict[str, str]
    process: psutil.Process

    def headers(self) -> dict[str, str]:
        """Headers with a key that may do everything."""
        return self.authorization

    def rss(self) -> int:
        """Resident memory in bytes, of the server and its engine."""
        return sum(process.memory_info().rss for process in (self.process, *self.process.children(recursive=True)))


@contextmanager
def server_process(folder: Path) -> Iterator[ServerProcess]:
    """Serve until the block ends, with small caches, which are full soon."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.server_process", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        address = json.loads(child.stdout.readline())
        try:
            yield ServerProcess(**address, process=psutil.Process(child.pid))
        finally:
            child.stdin.close()


def main() -> None:
    """Serve until standard input ends."""
    engine = EngineSettings(concurrency=8, prefix_cache_bytes=2**20)
    service = ServiceSettings(conversation_tokens=10_000)
    edge = {"frame_bytes": FRAME_BYTES, "refused_bytes": 2**50}
    with chat_server(Path(sys.argv[1]), engine=engine, service=service, **edge) as server:
        sys.stdout.write(json.dumps({"url": server.url, "authorization": server.headers()}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
