"""A real server of the tiny model, on a free port in a thread, with OpenAI's client."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.config.serving import BODY_BYTES, EngineSettings, MirrorSettings, ServerSettings, ServiceSettings, TLSSettings
from grpo.log.folder import ServedLog
from grpo.log.records import ServedTurn
from grpo.policy.catalog import load_weights
from grpo.policy.transformers.model import TransformersPolicy
from grpo.serving.access.connections import Connections
from grpo.serving.access.guard import Authenticator
from grpo.serving.access.keys import KeyStore
from grpo.serving.engine.engine import ProcessPolicy
from grpo.serving.engine.served_model import ServedModel
from grpo.serving.requests.service import Service
from grpo.serving.routes.operations import Orchestrator
from grpo.serving.server import ChatServer as Uvicorn
from grpo.serving.server import ServerPlaces, build_app, make_connections, uvicorn_config

CLERK = Path("data/models/desk_clerk")


def load_clerk() -> TransformersPolicy:
    return load_weights(str(CLERK))


def clerk(
    version: int = 1,
    *,
    agent: MultiTurnAgent | None = None,
    load: Callable[[], TransformersPolicy] = load_clerk,
) -> ServedModel:
    """The shipped clerk as a version of the model `clerk`, in a process of its own."""
    policy = ProcessPolicy(load)
    agent = agent or MultiTurnAgent(AgentConfig(model_name=str(CLERK)))
    agent.set_policy(policy)
    return ServedModel(
        model="clerk", version=f"clerk/{version}", policy=policy, agent=agent, temperature=1.0, max_new_tokens=24
    )


@dataclass(slots=True, kw_only=True)
class ChatServer:
    """A running server."""

    port: int
    service: Service
    server: Uvicorn
    keys: KeyStore
    folder: Path
    book: Connections
    clients: dict[str, openai.OpenAI] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(
        self, name: str = "shop", scopes: tuple[str, ...] = ("chat", "feedback", "outcomes", "log", "metrics", "admin")
    ) -> openai.OpenAI:
        """OpenAI's client with a key of its own, which does not try again."""
        if name not in self.clients:
            secret = self.keys.create(name, scopes)
            self.clients[name] = openai.OpenAI(base_url=f"{self.url}/v1", api_key=secret, max_retries=0)
        return self.clients[name]

    def headers(self, name: str = "shop") -> dict[str, str]:
        """Headers with the key of a client."""
        return {"Authorization": f"Bearer {self.client(name).api_key}"}

    @staticmethod
    def wait(seconds: float) -> None:
        threading.Event().wait(seconds)

    def turns(self) -> list[ServedTurn]:
        """Turns in the log, in the order of their arrival."""
        records = list(ServedLog(self.folder / "log").read())
        turns = [record for record in records if isinstance(record, ServedTurn)]
        return sorted(turns, key=lambda turn: (turn.time, turn.choice))


@contextmanager
def chat_server(
    folder: Path,
    next_version: Callable[[str], ServedModel | None] = lambda current: None if current else clerk(),
    *,
    engine: EngineSettings | None = None,
    service: ServiceSettings | None = None,
    orchestrator: Orchestrator | None = None,
    body_bytes: int = BODY_BYTES,
    frame_bytes: int = BODY_BYTES,
    tls: tuple[Path, Path] | None = None,
    mirror: MirrorSettings | None = None,
    database: str | None = None,
    tracking_uri: str = "",
    **edge: Any,
) -> Iterator[ChatServer]:
    """Serve until the block ends; yields when the first version is loaded. `edge` are bounds of `ServerSettings`."""
    keys = KeyStore(folder / "keys.json")
    places = ServerPlaces(
        log=folder / "log",
        budgets=folder / "budgets.db",
        reports=folder,
        database=database,
        tracking_uri=tracking_uri,
    )
    settings = ServerSettings(
        watch_s=0.05,
        jobs_s=0.02,
        engine=engine or EngineSettings(concurrency=8),
        service=service or ServiceSettings(),
        body_bytes=body_bytes,
        frame_bytes=frame_bytes,
        mirror=mirror,
        tls=None if tls is None else TLSSettings(certificate=str(tls[0]), private_key=str(tls[1])),
        **edge,
    )
    book = make_connections(settings)
    app, running = build_app(settings, places, next_version, Authenticator(keys), orchestrator, connections=book)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = Uvicorn(uvicorn_config(app, settings, book), running)
        thread = threading.Thread(target=lambda: server.run([listener]))
        thread.start()
        while not (server.started and running.ready):
            assert thread.is_alive()
            threading.Event().wait(0.01)
        port = listener.getsockname()[1]
        chats = ChatServer(port=port, service=running, server=server, keys=keys, folder=folder, book=book)
        try:
            yield chats
        finally:
            for client in chats.clients.values():
                client.close()
            server.should_exit = True
            thread.join()
