"""`grpo serve` without its log or its metrics, whose cost is the difference.

python -m tests.benchmarks.serve_without log serve FOLDER --port 8000
"""

from __future__ import annotations

import sys

from grpo.log.records import Record
from grpo.log.writer import ServingLog
from grpo.serving import server
from grpo.serving.metrics import Metrics


class Unlogged(ServingLog):
    """Log that writes nothing."""

    async def append(self, record: Record) -> None:
        """Acknowledge a record at once."""


class Unobserved(Metrics):
    """Metrics that count no turn."""

    def observe(self, *arguments: object) -> None:
        """Count nothing."""


if __name__ == "__main__":
    from grpo_cli.app import run

    if sys.argv.pop(1) == "log":
        server.ServingLog = Unlogged  # type: ignore[misc]
    else:
        server.Metrics = Unobserved  # type: ignore[misc]
    run()
