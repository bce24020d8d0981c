"""Servers in trouble: a real chat server with one fault after the other, and the parts of one whose disk stalls.

Their metrics are those that the code of the server makes of the faults, so that a test of the alerts need not invent
them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import openai

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.config.serving import EngineSettings, MirrorSettings, ServiceSettings
from grpo.log.writer import ServingLog
from grpo.serving.engine.served_model import ServedModel
from grpo.serving.engine.versions import Versions
from grpo.serving.metrics import Metrics
from grpo.serving.requests.service import Service
from tests.chaos.machine import Machine
from tests.grpo.log.fixtures import feedback
from tests.grpo.serving.chat_servers import CLERK, ChatServer, chat_server, clerk
from tests.grpo.serving.test_app import engine_pid
from tests.places import ROOT

DAY = 86_400
_BROKEN = "break"
"""First word of a message that the agent cannot answer."""


class _Agent(MultiTurnAgent):
    """The clerk's agent, with an error in its code."""

    async def respond(self, transcript: Any, messages: Any, context: Any = None) -> Any:
        if str(messages[-1].content).startswith(_BROKEN):
            raise RuntimeError("the agent is broken")
        return await super().respond(transcript, messages, context)


@dataclass(slots=True)
class TroubledServer:
    """A chat server of a champion that is 31 days old, with reports of bad retrainings, on a small disk.

    Its compactions fail, because a file stands where the folder of the tables should be. MLflow is its mirror.
    """

    server: ChatServer
    mlflow: socket.socket
    """MLflow's port, which accepts connections and answers nothing."""
    swaps_fail: threading.Event = field(default_factory=threading.Event)

    def fail(self) -> None:
        """Let everything happen that needs a server which has been scraped before, because counters have to grow."""
        self.swaps_fail.set()
        self.mlflow.close()
        self.talk(120)
        self.talk(5, _BROKEN)
        self.stall(seconds=3.0)
        Machine.fill(self.server.folder / "ballast")

    def talk(self, count: int, text: str = "Where is my order?") -> None:
        """Begin conversations, more at once than the server admits, until each is answered or failed."""
        client = self.server.client()

        def ask(number: int) -> None:
            while True:
                try:
                    messages: list[Any] = [{"role": "user", "content": f"{text} {number}"}]
                    client.chat.completions.create(model="clerk", messages=messages, max_tokens=4)
                except openai.InternalServerError as error:
                    if error.status_code == 503 and "cannot be logged" not in str(error):
                        time.sleep(0.05)
                        continue
                return

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(ask, range(count)))

    def stall(self, *, seconds: float) -> None:
        """Stop the process that samples, while turns wait for their first token."""
        pid = engine_pid(self.server)
        os.kill(pid, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(self.talk, 4)
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)
            waiting.result()


@contextmanager
def troubled_server(folder: Path) -> Iterator[TroubledServer]:
    """Start the server, whose log and reports are in this folder."""
    _write_report(folder / "weekly", "failed", age_s=15 * DAY)
    _write_report(folder / "nightly", "running", age_s=DAY)
    shutil.copytree(ROOT / "tests" / "schemas" / "log-3", folder / "log", ignore=shutil.ignore_patterns("turns"))
    (folder / "log" / "turns").touch()
    swaps_fail = threading.Event()
    agent = _Agent(AgentConfig(model_name=str(CLERK)))

    def next_version(current: str) -> ServedModel | None:
        if swaps_fail.is_set():
            raise ConnectionError("the registry is away")
        return None if current else replace(clerk(agent=agent), registered=time.time() - 31 * DAY)

    with (
        socket.create_server(("127.0.0.1", 0)) as mlflow,
        chat_server(
            folder,
            next_version,
            engine=EngineSettings(concurrency=2),
            service=ServiceSettings(max_requests=4),
            mirror=MirrorSettings(experiment="served", every_s=0.1),
            tracking_uri=f"http://127.0.0.1:{mlflow.getsockname()[1]}",
        ) as server,
    ):
        try:
            yield TroubledServer(server, mlflow, swaps_fail)
        finally:
            (folder / "ballast").unlink(missing_ok=True)


def _write_report(folder: Path, verdict: str, *, age_s: float) -> None:
    """Write the report of a retraining, which accepted 4 of 10 conversations."""
    folder.mkdir()
    report = folder / "retraining.json"
    curation = {"records": 10, "accepted": 4}
    report.write_text(json.dumps({"verdict": verdict, "triggers": {"curation": curation}}))
    os.utime(report, (time.time() - age_s,) * 2)


@contextmanager
def stalled_metrics(folder: Path, records: int) -> Iterator[Callable[[], str]]:
    """Metrics of a server without a version, while these records wait for a disk that does not return from a sync."""
    ended, begun = threading.Event(), threading.Event()
    metrics = Metrics()

    def sync(_: int) -> None:
        begun.set()
        ended.wait()

    async def write() -> None:
        async with ServingLog(folder, sync=sync) as log:
            metrics.watch(Service(Versions(EngineSettings()), log), log, None)
            waiting = [asyncio.create_task(log.append(feedback(str(number)))) for number in range(records)]
            await asyncio.gather(*waiting)

    thread = threading.Thread(target=asyncio.run, args=(write(),))
    thread.start()
    try:
        assert begun.wait(240)
        yield lambda: metrics.render().decode()
    finally:
        ended.set()
        thread.join()
