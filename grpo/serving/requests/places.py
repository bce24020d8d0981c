"""Places of requests in conversations: the turns that they name or repeat.

The turn may have been answered by this server, or by another server that shares its database.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from grpo.serving.engine.versions import ServedVersion, Versions
from grpo.serving.protocol.api_errors import invalid_request
from grpo.serving.protocol.chat_request import ChatRequest
from grpo.serving.requests.answered_turns import AnsweredTurn, Continuation
from grpo.serving.requests.conversations import Conversations, unknown_conversation
from grpo.serving.requests.digested_request import DigestedRequest
from grpo.serving.requests.digests import DigestedTools
from grpo.serving.requests.turn_store import LoadedTurns, OneServer, TurnStore

if TYPE_CHECKING:
    from grpo.serving.access.callers import Caller


class Places:
    """Places of requests. `version_of` returns the version that answers new conversations with a model."""

    def __init__(
        self, conversations: Conversations, versions: Versions, version_of: Callable[[str], ServedVersion]
    ) -> None:
        self._conversations, self._versions, self._version_of = conversations, versions, version_of
        self.turns: TurnStore = OneServer()
        """Store of answered turns that the servers share."""

    async def load_before(self, request: ChatRequest, caller: Caller) -> AnsweredTurn | None:
        """Turn that a request names, or the last one of the conversation that it names, also of another server."""
        if request.previous_turn is not None:
            await self.turns.load_turn(request.previous_turn, caller.key_hash)
        elif request.conversation is not None:
            await self.turns.load_last(request.conversation, caller.key_hash)
            if request.called_turn is not None:
                await self.turns.load_turn(request.called_turn, caller.key_hash)
        before = self._known_turn(request, caller)
        name = request.conversation
        if before is None and name is not None and not self._conversations.may_begin(name, caller.key_hash):
            raise unknown_conversation(name)  # now, because the results of calls cannot be read without it
        return before

    async def load(self, request: ChatRequest, caller: Caller, asked: DigestedRequest) -> LoadedTurns:
        """Bring the turn that a request continues into memory, if another server has answered it."""
        if request.previous_turn is not None:
            await self.turns.load_turn(request.previous_turn, caller.key_hash)
            return LoadedTurns()
        if request.conversation is None:
            return await self.turns.load_prefix(asked.messages, caller.key_hash, request.user, asked.tools)
        await self.turns.load_last(request.conversation, caller.key_hash, asked.messages)
        if request.called_turn is not None:
            await self.turns.load_turn(request.called_turn, caller.key_hash)
        last = self._conversations.last_turn(request.conversation, caller.key_hash)
        if last is None or asked.messages.digests[: len(last.messages)] == last.digests:
            return LoadedTurns()
        return await self.turns.load_prefix(asked.messages, caller.key_hash, request.user, asked.tools)

    def find(
        self, request: ChatRequest, caller: Caller, asked: DigestedRequest, loaded: LoadedTurns
    ) -> tuple[Continuation, DigestedTools]:
        """Place of the messages, and the tools of the conversation.

        These are the client's tools if it sent some, otherwise the tools of the turn that the request names. If it
        names none, the tools of the loaded versions, the newest first, and of `loaded` are tried until the messages
        continue a turn that has them. A new conversation gets the tools of the version that answers it.
        """
        last = self._known_turn(request, caller)
        if last is not None and request.conversation is not None and request.called_turn not in (None, last.turn_id):
            raise unknown_conversation(request.conversation)  # the turn with the calls has left the memory
        if asked.tools is not None:
            choices = [asked.tools]
        elif last is not None:
            choices = [last.digested_tools]
        else:
            choices = [DigestedTools.of(version.served.tools) for version in reversed(self._versions.loaded)]
            choices += [turn.digested_tools for turn in loaded.turns]
            if not choices:  # the last version was lost while the request was read: an error with Retry-After
                choices = [DigestedTools.of(self._version_of(request.model).served.tools)]
        places = []
        if request.previous_turn is not None:
            tools, owner = choices[0], caller.key_hash
            started = request.instructions
            place = self._conversations.after(
                request.previous_turn,
                asked.messages,
                owner=owner,
                user=request.user,
                tools=tools,
                instructions=started,
            )
            if request.conversation not in (None, place.conversation_id):
                message = f"the previous response is of conversation {place.conversation_id}. Send one of the two ids"
                raise invalid_request(message, param="conversation_id")
            return place, tools
        for tools in choices:
            place = self._conversations.find(
                asked.messages,
                conversation_id=request.conversation,
                owner=caller.key_hash,
                user=request.user,
                tools=tools,
                ambiguous=loaded.ambiguous,
                called=last if request.called_turn is not None else None,
            )
            places.append((place, tools))
            if place.joined != "unknown prefix":
                break
        place, tools = places[-1] if places[-1][0].joined != "unknown prefix" else places[0]
        if place.before is None and place.joined != "other version" and asked.tools is None and last is None:
            tools = DigestedTools.of(self._version_of(request.model).served.tools)
        return place, tools

    def is_last(self, place: Continuation, owner: str) -> bool:
        """True if a place is after the last turn of its conversation, or at its beginning."""
        last = self._conversations.last_turn(place.conversation_id, owner)
        turn = place.retired_turn if place.before is None else place.before.turn_id
        return last is None or turn in (None, last.turn_id)

    def _known_turn(self, request: ChatRequest, caller: Caller) -> AnsweredTurn | None:
        """Turn in memory that a request names, or the last one of the conversation that it names, if it is there."""
        if request.previous_turn is not None:
            return self._conversations.answered(request.previous_turn, caller.key_hash)
        last = self._conversations.last_turn(request.conversation, caller.key_hash)
        called = None if last is None else self._conversations.known(request.called_turn or "")
        is_own = called is not None and last is not None and called.conversation_id == last.conversation_id
        return called if is_own and called is not None and called.owner == caller.key_hash else last
