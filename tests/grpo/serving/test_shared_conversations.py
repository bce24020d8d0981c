"""Two servers of one log and one database: conversations, requests in progress, erasures and versions of each other."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import openai
import psycopg2
import pytest

from grpo.config.serving import EngineSettings
from grpo.serving.engine.served_model import ServedModel
from tests import waiting
from tests.e2e.postgres import Cluster
from tests.grpo.serving.chat_servers import ChatServer, chat_server, clerk
from tests.grpo.serving.databases import cluster, new_database
from tests.grpo.serving.test_erasure import stopped_engine

__all__ = ["cluster"]
until = partial(waiting.until, patience_s=240)
QUESTION: Any = {"role": "user", "content": "Hello, where is my order 1234?"}
MORE: Any = {"role": "user", "content": "And order 5678?"}


class Newest:
    """Look-up of the newest version, `number`, of which a test decides."""

    def __init__(self) -> None:
        self.number = 1

    def __call__(self, current: str) -> ServedModel | None:
        return None if current == f"clerk/{self.number}" else clerk(self.number)

    def load_version(self, version: str) -> ServedModel:
        return clerk(int(version.removeprefix("clerk/")))


@contextmanager
def two_servers(
    folder: Path, cluster: Cluster, newest: tuple[Newest, Newest] | None = None
) -> Iterator[tuple[ChatServer, ChatServer]]:
    """Two servers whose clients have one key."""
    looks = newest or (Newest(), Newest())
    url, engine = new_database(cluster), EngineSettings(concurrency=2)
    with (
        chat_server(folder, looks[0], database=url, engine=engine) as first,
        chat_server(folder, looks[1], database=url, engine=engine) as second,
    ):
        key = first.client().api_key
        other = openai.OpenAI(base_url=f"{second.url}/v1", api_key=key, max_retries=0)
        second.clients["shop"] = other
        yield first, second


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[tuple[ChatServer, ChatServer]]:
    with two_servers(tmp_path_factory.mktemp("servers"), cluster) as both:
        yield both


def ask(server: ChatServer, *messages: Any, **fields: Any) -> Any:
    extra = {"conversation_id": fields.pop("conversation")} if "conversation" in fields else {}
    chat = server.client().chat.completions
    return chat.create(model="clerk", messages=messages, max_tokens=4, extra_body=extra, **fields)


def respond(server: ChatServer, text: str, before: str | None = None) -> Any:
    answer = server.client().responses
    return answer.create(model="clerk", input=text, max_output_tokens=4, previous_response_id=before or openai.omit)


def refusal(server: ChatServer, *messages: Any, **fields: Any) -> tuple[int, str | None]:
    with pytest.raises(openai.APIStatusError) as refused:
        ask(server, *messages, **fields)
    return refused.value.status_code, refused.value.code


def test_the_other_server_goes_on_by_id_by_messages_and_by_response(servers: tuple[ChatServer, ChatServer]):
    """One conversation each, whose turns follow one another; a response that is named twice is a fork."""
    (first, second), joined = servers, servers[1].service.counts.joined.copy()
    begun = ask(first, QUESTION)
    reply = {"role": "assistant", "content": begun.choices[0].message.content}
    assert ask(second, MORE, conversation=begun.conversation_id).conversation_id == begun.conversation_id
    other = ask(first, {**QUESTION, "content": "Hello."})
    reply = {"role": "assistant", "content": other.choices[0].message.content}
    continued = ask(second, {**QUESTION, "content": "Hello."}, reply, MORE)
    assert continued.conversation_id == other.conversation_id
    response = respond(first, "Good day, is order 77 on its way?")
    more, again = (respond(second, "When?", response.id) for _ in range(2))
    back = respond(first, "Thanks.", more.id)
    assert {more.conversation_id, again.conversation_id, back.conversation_id} == {response.conversation_id}
    assert second.service.counts.joined - joined == {"id": 1, "prefix": 1, "response": 1, "fork": 1}
    parents = {turn.id: turn.parent for turn in first.turns()}
    named = [response.id, more.id, again.id, back.id]
    turns = [name.removeprefix("resp_") for name in named]
    assert [parents[turn] for turn in turns] == [None, turns[0], turns[0], turns[1]]
    with pytest.raises(openai.NotFoundError, match="no response"):
        respond(second, "When?", "resp_" + "0" * 32)


def test_a_conversation_with_a_turn_in_progress_is_busy_on_the_other_server(
    servers: tuple[ChatServer, ChatServer], cluster: Cluster
):
    """409 by its id, until the turn has ended."""
    first, second = servers
    with ThreadPoolExecutor(1) as pool:
        begun = ask(first, QUESTION)
        with stopped_engine(first) as go_on:
            running = pool.submit(ask, first, MORE, conversation=begun.conversation_id)
            until("the request", lambda: first.service.requests == 1)
            until("its lease", lambda: len(cluster.query(_name(second), "SELECT turn FROM grpo_serve.leases")) == 1)
            assert refusal(second, MORE, conversation=begun.conversation_id) == (409, "conversation_busy")
            go_on()
            running.result()
        assert ask(second, MORE, conversation=begun.conversation_id).conversation_id == begun.conversation_id


def test_a_conversation_with_its_first_turn_in_progress_is_busy_on_the_other_server(
    servers: tuple[ChatServer, ChatServer], cluster: Cluster
):
    """409 by its id, until the turn has ended; then the other server goes on from it."""
    first, second = servers
    with ThreadPoolExecutor(1) as pool:
        with stopped_engine(first) as go_on:
            running = pool.submit(ask, first, QUESTION)
            begun = "SELECT conversation FROM grpo_serve.leases WHERE conversation IS NOT NULL"
            until("its lease", lambda: len(cluster.query(_name(second), begun)) == 1)
            ((conversation,),) = cluster.query(_name(second), begun)
            for server in servers:
                assert refusal(server, MORE, conversation=conversation) == (409, "conversation_busy")
            go_on()
            running.result()
        ask(second, MORE, conversation=conversation)
        parents = {turn.id: turn.parent for turn in first.turns() if turn.conversation_id == conversation}
        assert len(parents) == 2
        assert [parent for parent in parents.values() if parent is None] == [None]


def test_a_request_of_another_version_and_one_that_goes_on_exclude_each_other(
    servers: tuple[ChatServer, ChatServer], cluster: Cluster
):
    """As if a version were loaded nowhere for the first request, and again for the second. An erased turn is gone."""
    first, second = servers
    begun = ask(first, QUESTION)
    turn, pod = begun.id.removeprefix("chatcmpl-"), first.service.turns._database.pod
    lease = uuid4()
    opened = (
        f"SELECT grpo_serve.open_conversation('{begun.conversation_id}', 'o', 's', '{pod}', '{lease}', '{turn}', true)"
    )
    database = psycopg2.connect(first.service.turns._database._url)
    database.autocommit = True
    with closing(database), database.cursor() as cursor:
        cursor.execute("SET search_path TO grpo_serve")
        cursor.execute(opened)
        assert cursor.fetchone() == ("first",)
        assert refusal(second, MORE, conversation=begun.conversation_id) == (409, "conversation_busy")
        cursor.execute(opened)
        assert cursor.fetchone() == ("busy",)
        cursor.execute(f"DELETE FROM leases WHERE id = '{lease}'")
        ask(second, MORE, conversation=begun.conversation_id)

        def opened_again() -> object:
            cursor.execute(opened)
            return cursor.fetchone()

        # another turn is the last one now; the lease of the request is released after its answer
        until("the end of the lease", lambda: opened_again() == ("gone",))
        cursor.execute(f"DELETE FROM turns WHERE conversation = '{begun.conversation_id}'")
        cursor.execute(opened.replace("true", "false"))
        assert cursor.fetchone() == ("gone",)


def test_an_erasure_reaches_the_other_server(servers: tuple[ChatServer, ChatServer], cluster: Cluster):
    """Its turns in progress end with 410, and neither server, nor the database, knows the conversations any more."""
    first, second = servers
    with ThreadPoolExecutor(1) as pool:
        begun, kept = ask(first, QUESTION, user="ann"), ask(first, QUESTION, user="bob")
        ask(second, MORE, conversation=begun.conversation_id, user="ann")
        with stopped_engine(second):
            running = pool.submit(refusal, second, MORE, conversation=begun.conversation_id, user="ann")
            until("the request", lambda: second.service.requests == 1)
            answer = httpx.delete(f"{first.url}/v1/users/ann", headers=first.headers(), timeout=60).json()
            assert answer["found"]
            assert running.result() == (410, "conversation_erased")
        for server in (first, second):
            unknown = refusal(server, MORE, conversation=begun.conversation_id, user="ann")
            assert unknown == (404, "conversation_not_found")
        rows = {name for (name,) in cluster.query(_name(first), "SELECT conversation FROM grpo_serve.turns")}
        assert rows & {begun.conversation_id, kept.conversation_id} == {kept.conversation_id}
        assert ask(second, MORE, conversation=kept.conversation_id, user="bob").conversation_id == kept.conversation_id


def test_a_server_loads_the_version_of_a_conversation_of_the_other(tmp_path: Path, cluster: Cluster):
    """503 with the time to wait until it has; new conversations are still of the version that it looks up."""
    looks = Newest(), Newest()
    with two_servers(tmp_path, cluster, looks) as (first, second):
        looks[0].number = 2
        until("the new version", lambda: first.service.versions.current.served.version == "clerk/2")
        begun = ask(first, QUESTION)
        assert begun.system_fingerprint.startswith("clerk/2-")
        assert refusal(second, MORE, conversation=begun.conversation_id) == (503, "version_not_loaded")
        until("it", lambda: len(second.service.versions.loaded) == 2)
        more = ask(second, MORE, conversation=begun.conversation_id)
        assert (more.system_fingerprint, more.conversation_id) == (begun.system_fingerprint, begun.conversation_id)
        assert ask(second, QUESTION).system_fingerprint.startswith("clerk/1-")


def _name(server: ChatServer) -> str:
    """Name of the database of a server."""
    return str(server.service.turns._database._url).rpartition("/")[2]
