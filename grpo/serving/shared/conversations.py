"""Conversations of several servers in one PostgreSQL database. The memory of each server is a cache of it.

    load     bring the turn that a request continues into memory, with its tokens as they were logged
    begin    one statement: take a lease on that turn or conversation, which ends with the request or with its server
    commit   one statement, before the client knows the end of its answer: the next request can continue the turn

A turn is in the log before it is in the database. If the server is killed between both, or if the database does not
answer for longer than `_COMMIT_S`, the log has a turn that no client got. The request fails, and the next try is
another turn after the same one.

Only the version of a turn can continue it. If a server has not loaded this version while another server has, it loads
the version and answers 503 until then. If no server has it, the conversation goes on with the version that answers,
as `other version`.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from grpo.log.folder import name_digest
from grpo.log.records import Erasure
from grpo.serving.access.preparation import Preparation
from grpo.serving.engine.versions import ServedVersion, Versions
from grpo.serving.protocol.api_errors import APIError
from grpo.serving.requests.answered_turns import AnsweredTurn, Continuation, Joined
from grpo.serving.requests.conversations import Conversations, busy_error, count_answered
from grpo.serving.requests.digests import DigestedMessages, DigestedTools, conversation_digest
from grpo.serving.requests.turn_store import Begun, LoadedTurns
from grpo.serving.shared.database import SharedDatabase
from grpo.serving.shared.stored_turns import restore_turn, store_turn

_COMMIT_S, _COMMIT_RETRY_S = 10.0, 0.25
_LOAD_RETRY_S = 2.0
_CHARACTERS_PER_BYTE = 4
"""Characters that a stored byte counts as, because stored turns are compressed."""
_COLUMNS = (
    "t.id, t.conversation, t.digest, t.repeated, t.successors, t.version, t.policy, "
    "(SELECT count(*) FROM leases l WHERE l.turn = t.id AND l.pod = ANY (live_pods())) AS leases"
)
_LOST = "EXISTS (SELECT FROM leases l WHERE l.answer = t.id AND NOT l.pod = ANY (live_pods())) AS lost, t.parent"
_FROM_LAST = "FROM conversations c LEFT JOIN turns t ON t.id = c.last_turn WHERE c.id = $1 AND c.owner = $2"
_LAST = f"SELECT {_COLUMNS}, {_LOST} {_FROM_LAST}"
_ALIKE = f"SELECT {_COLUMNS} FROM turns t WHERE t.digest = ANY ($1) AND t.owner = $2"  # noqa: S608
_TURN = f"SELECT {_COLUMNS} FROM turns t WHERE t.id = $1"  # noqa: S608
_OWN_TURN = f"{_TURN} AND t.owner = $2"
_UNDO = "UPDATE conversations SET last_turn = $3 WHERE id = $1 AND last_turn = $2"
_STATE = "SELECT state FROM turns WHERE id = $1"
_OPEN = "SELECT open_conversation($1, $2, $3, $4, $5, $6, $7)"
_BEGIN = "SELECT begin_turn($1, $2, $3, $4)"
_RELEASE = "DELETE FROM leases WHERE id = $1"
_END = "SELECT end_turn($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
_EXPECTED = ("id", "new", "unknown prefix", "ambiguous")
"""Ways to join a conversation after which no other turn may have been answered in the place of the request."""
_FORGET = (
    "WITH turns_of AS (DELETE FROM turns WHERE conversation IN "
    "(SELECT conversation FROM turns WHERE person = ANY ($1) OR subject = ANY ($2))) "
    "DELETE FROM conversations WHERE subject = ANY ($2)"
)


class SharedConversations:
    """Answered turns in the database, see `TurnStore`. `user_hash` hashes the name of a user as the log does."""

    def __init__(
        self,
        database: SharedDatabase,
        memory: Conversations,
        versions: Versions,
        preparation: Preparation,
        user_hash: Callable[[str], str],
    ) -> None:
        self._database, self._memory, self._versions = database, memory, versions
        self._preparation, self._user_hash = preparation, user_hash
        database.versions = self._loaded_versions
        versions.idle_elsewhere_s = self._idle_elsewhere_s

    @property
    def away(self) -> str | None:
        """See `TurnStore`."""
        return self._database.away

    @property
    def servers(self) -> int:
        """See `TurnStore`."""
        return len(self._database.pods)

    async def load_last(self, conversation_id: str, owner: str, asked: DigestedMessages | None = None) -> None:
        """See `TurnStore`."""
        rows = await self._database.rows(_LAST, conversation_id, owner)
        turn = await self._load(rows[0], owner) if rows and rows[0]["id"] is not None else None
        if turn is not None and asked is not None and rows[0]["lost"]:
            turn = await self._undo_repeated(turn, rows[0]["parent"], owner, asked)
        if turn is not None:
            self._memory.set_last(turn)
            return
        self._memory.drop(conversation_id)
        if rows:
            self._memory.keep_open(conversation_id, owner)

    async def _undo_repeated(
        self, turn: AnsweredTurn, parent: str | None, owner: str, asked: DigestedMessages
    ) -> AnsweredTurn | None:
        """Turn to continue if the last answer of a conversation may not have been sent, because its server was killed.

        If the client sends the messages of that turn again, it did not get the answer. Then the turn is undone, and the
        turn before is returned, or None if there is none. Otherwise the last turn is returned.
        """
        parents = [] if parent is None else await self._database.rows(_TURN, parent)
        before = await self._load(parents[0], owner) if parents else None
        known = 0 if before is None else len(before.messages)
        sent = turn.digests[:-1]
        if (parent is not None and before is None) or asked.digests not in (sent, sent[known:]):
            return turn
        await self._database.rows(_UNDO, turn.conversation_id, turn.turn_id, parent)
        return before

    async def load_turn(self, turn_id: str, owner: str) -> None:
        """See `TurnStore`."""
        rows = await self._database.rows(_OWN_TURN, turn_id, owner)
        if not rows or await self._load(rows[0], owner) is None:
            self._memory.forget(turn_id)

    async def load_prefix(
        self, asked: DigestedMessages, owner: str, user: str | None, tools: DigestedTools | None
    ) -> LoadedTurns:
        """See `TurnStore`."""
        answered = count_answered(asked.messages)
        if not answered:
            return LoadedTurns()

        def digests() -> list[str]:
            names = {tools.digest} if tools is not None else self._tools_digests()
            sets = (DigestedTools(tools=(), digest=name) for name in sorted(names))
            return [conversation_digest(owner, user, each, asked, until=answered) for each in sets]

        looked_up = digests()
        rows = await self._database.rows(_ALIKE, looked_up, owner)
        if not rows and tools is None:
            await self._database.beat()  # another server may have loaded a version with other tools a moment ago
            if digests() != looked_up:
                looked_up = digests()
                rows = await self._database.rows(_ALIKE, looked_up, owner)
        alike: dict[str, list[Any]] = defaultdict(list)
        for row in rows:
            alike[row["digest"]].append(row)
        for digest in looked_up:
            self._memory.keep_only(digest, [row["id"] for row in alike.get(digest, ())])
        ambiguous = {digest for digest, same in alike.items() if len(same) > 1 or same[0]["repeated"]}
        loaded = [await self._load(same[0], owner) for digest, same in alike.items() if digest not in ambiguous]
        return LoadedTurns(turns=tuple(filter(None, loaded)), ambiguous=frozenset(ambiguous))

    async def begin(self, place: Continuation, owner: str, *, by_id: bool) -> Begun | None:
        """See `TurnStore`. A new conversation is stored already here, because its client is given its id."""
        lease, conversation = uuid4(), place.conversation_id
        of_request = (self._database.pod, lease)
        if place.before is None:
            opened = (conversation, owner, name_digest(conversation))
            query: tuple[Any, ...] = (_OPEN, *opened, *of_request, place.retired_turn, by_id)
        else:
            query = (_BEGIN, place.before.turn_id, *of_request, by_id)
        try:
            rows = await self._database.rows(*query)
        except BaseException:  # the lease may exist: the database's answer was lost, or the client went away
            self.release(lease)
            raise
        result = rows[0][0]
        if result == "busy":
            raise busy_error(f"a turn of conversation {place.conversation_id} is in progress. Wait for its end")
        if result == "gone":
            return None
        if not by_id and place.before is not None:
            went_on: Joined = "response" if place.joined == "response" else "prefix"
            place = replace(place, joined="fork" if result == "fork" else went_on)
        return Begun(place=place, lease=lease)

    def release(self, lease: UUID | None) -> None:
        """See `TurnStore`."""
        if lease is not None:
            self._database.later(_RELEASE, lease)

    async def commit(self, turn: AnsweredTurn, place: Continuation, lease: UUID | None, *, is_last: bool) -> None:
        """See `TurnStore`. If the database does not answer, it is tried again for `_COMMIT_S`."""
        characters = sum(len(message.content) for message in turn.messages)
        content = await self._preparation.run(turn.owner, characters, partial(store_turn, turn), admitted=True)
        version, policy = _key(turn.served_by)
        arguments = (
            *(turn.turn_id, turn.conversation_id, turn.owner, name_digest(turn.conversation_id)),
            None if turn.user is None else name_digest(self._user_hash(turn.user)),
            *(turn.digest, version, policy, turn.size, content),
            None if place.before is None else place.before.turn_id,
            *(is_last, place.joined in _EXPECTED, lease),
        )
        until = time.monotonic() + _COMMIT_S
        while True:
            try:
                if not self._database.has_told(version, policy):
                    await self._database.beat()  # others must know who has the version of this turn
                rows = await self._database.rows(_END, *arguments)
                break
            except APIError:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(_COMMIT_RETRY_S)
        if not rows[0][0]:
            raise busy_error(
                f"another turn of conversation {turn.conversation_id} was answered while this one ran. Send the "
                "request again"
            )

    async def forget(self, erasure: Erasure) -> None:
        """See `TurnStore`."""
        await self._database.rows(_FORGET, sorted(erasure.users), sorted(erasure.conversations))

    def forget_later(self, erasure: Erasure) -> None:
        """See `TurnStore`."""
        self._database.later(_FORGET, sorted(erasure.users), sorted(erasure.conversations))

    async def _load(self, row: Mapping[str, Any], owner: str) -> AnsweredTurn | None:
        """Turn of a row, in memory. None if it has been deleted since. Raises as `_refuse_elsewhere`."""
        version = self._version(row["version"], row["policy"])
        if version is None:
            await self._refuse_elsewhere(row["version"], row["policy"])
        turn = self._memory.known(row["id"])
        if turn is None or (version is not None and turn.version is not version):
            states = await self._database.rows(_STATE, row["id"])
            if not states:
                return None
            content = states[0]["state"]
            names = {"turn_id": row["id"], "conversation_id": row["conversation"], "owner": owner}
            restore = partial(restore_turn, content, **names, version=version)
            turn = await self._preparation.run(owner, _CHARACTERS_PER_BYTE * len(content), restore)
            self._memory.add(turn, is_last=False)
        turn.in_progress, turn.successors = row["leases"], row["successors"]
        return turn

    async def _refuse_elsewhere(self, version: str, policy: str) -> None:
        """Raise `APIError` 503 if another server has loaded the version, after this server was asked to load it too."""
        await self._database.beat()
        for pod, versions in self._database.pods.items():
            if pod != self._database.pod and any(_is(each, version, policy) for each in versions):
                self._versions.want(version)
                raise APIError(
                    503,
                    f"the conversation is on {version}, which this server has not loaded yet. Try again in "
                    f"{_LOAD_RETRY_S:g} s",
                    type="overloaded_error",
                    code="version_not_loaded",
                    retry_after_s=_LOAD_RETRY_S,
                )

    def _version(self, version: str, policy: str) -> ServedVersion | None:
        running = (each for each in self._versions.loaded if each.stopped is None)
        return next((each for each in running if _key(each) == (version, policy)), None)

    def _tools_digests(self) -> set[str]:
        """Digests of the tools of all versions that any of the servers has loaded."""
        own = {DigestedTools.of(version.served.tools).digest for version in self._versions.loaded}
        return own | {each["tools"] for versions in self._database.pods.values() for each in versions}

    def _loaded_versions(self) -> list[dict[str, Any]]:
        """Description of this server's running versions, which the heartbeat tells the other servers."""
        return [
            {
                "version": version.served.version,
                "policy": version.served.policy.hash,
                "tools": DigestedTools.of(version.served.tools).digest,
                "idle_s": 0.0 if version.running else time.monotonic() - version.last_used,
            }
            for version in self._versions.loaded
            if version.stopped is None
        ]

    def _idle_elsewhere_s(self, version: ServedVersion) -> float:
        """Time since another server has used a version. Infinite if no other server has loaded it."""
        others = (versions for pod, versions in self._database.pods.items() if pod != self._database.pod)
        return min(
            (each["idle_s"] for versions in others for each in versions if _is(each, *_key(version))),
            default=float("inf"),
        )


def _key(version: ServedVersion) -> tuple[str, str]:
    return version.served.version, version.served.policy.hash


def _is(loaded: Mapping[str, Any], version: str, policy: str) -> bool:
    return bool(loaded["version"] == version and loaded["policy"] == policy)
