"""A promotion in one registry reaches two servers of one database, whose conversations stay on their versions."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from grpo.registry import Registry
from grpo.serving.engine.registered import WatchedVersion
from grpo.serving.engine.served_model import ServedModel
from grpo_tasks.registry import registry
from tests import waiting
from tests.e2e.postgres import Cluster
from tests.grpo.registry.making import put_into_service
from tests.grpo.registry.test_served_agent import registered
from tests.grpo.serving.chat_servers import CLERK, ChatServer, chat_server
from tests.grpo.serving.databases import cluster, new_database

__all__ = ["cluster"]
pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own internals
until = partial(waiting.until, patience_s=240)


class Looks(WatchedVersion):
    """The look-up of a server, with the versions that answer after looks which began after the promotion."""

    def __init__(self, models: Registry, address: str, promoted: threading.Event) -> None:
        super().__init__(models, address)
        self._promoted = promoted
        self.after: list[str] = []

    def __call__(self, current: str) -> ServedModel | None:
        is_after = self._promoted.is_set()
        served = super().__call__(current)
        if is_after:
            self.after.append(current if served is None else served.version)
        return served


def test_the_first_look_after_a_promotion_swaps_each_server_and_no_conversation(
    tmp_path: Path, tiny_folder: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """So that all servers have swapped after one watch interval. Earlier conversations go on, by turns on both servers,
    with the version that they began with."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    champion, successor = registered(tmp_path, CLERK), registered(tmp_path, tiny_folder, run_key="another")
    old, new = f"{champion.name}/{champion.version}", f"{successor.name}/{successor.version}"
    models, promoted = registry(), threading.Event()
    put_into_service(models, champion.name, champion.version)
    looks = [Looks(registry(), f"models:/{champion.name}@champion", promoted) for _ in range(2)]
    database = new_database(cluster)
    with (
        chat_server(tmp_path, looks[0], database=database) as first,
        chat_server(tmp_path, looks[1], database=database) as second,
    ):
        servers = first, second
        second.clients["shop"] = openai.OpenAI(
            base_url=f"{second.url}/v1", api_key=first.client().api_key, max_retries=0
        )
        begun = [_ask(server, champion.name) for server in servers]
        assert [_version(answer) for answer in begun] == [old, old]
        put_into_service(models, champion.name, successor.version)
        promoted.set()
        for server in servers:
            until("the new version", lambda server=server: server.service.versions.swaps == 1)
            until("a look", lambda server=server: looks[servers.index(server)].after)
        assert [look.after[0] for look in looks] == [new, new]
        for server in (second, first, second, first):
            for before in begun:
                more = _ask(server, champion.name, conversation_id=before.conversation_id)
                assert (_version(more), more.conversation_id) == (old, before.conversation_id)
        assert [_version(_ask(server, champion.name)) for server in servers] == [new, new]
        versions: dict[str, set[str]] = {}
        for turn in first.turns():
            versions.setdefault(turn.conversation_id, set()).add(turn.model)
        assert sorted(map(sorted, versions.values())) == sorted([[old], [old], [new], [new]])


def _ask(server: ChatServer, model: str, **extra: str) -> Any:
    question: Any = {"role": "user", "content": "Where is my parcel?"}
    chat = server.client().chat.completions
    return chat.create(model=model, messages=[question], max_tokens=4, extra_body=extra)


def _version(answer: Any) -> str:
    """Version that answered, `name/number`, without its digest."""
    return str(answer.system_fingerprint).rpartition("-")[0]
