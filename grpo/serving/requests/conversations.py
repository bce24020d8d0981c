"""Conversations in memory, which a request continues by id, or by its messages if the client keeps no id.

client sends          known as
u1                    a new conversation
u1 a1 u2              an answered turn has the digest of (u1 a1), so this is its next turn
u1 a1 u2'             that turn has a successor already, so this is a fork: another branch of the conversation
u1 x u2               no turn has that digest, so this is a new conversation with the earlier messages as context
u1 a1 u2              two turns have that digest, so it is ambiguous, and a new conversation as well

Texts are compared without the white space around them. Turns with calls are told apart by the ids of the calls, because
clients return these.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from grpo.messages import Message
from grpo.serving.protocol.api_errors import APIError, invalid_request
from grpo.serving.requests.answered_turns import AnsweredTurn, Continuation, Joined
from grpo.serving.requests.digests import DigestedMessages, DigestedTools, conversation_digest

if TYPE_CHECKING:
    from grpo.serving.engine.versions import ServedVersion

_MOST_UNANSWERED = 10_000
_BUSY_S = 1.0
"""Suggested wait, because it is not known when a turn in progress will end."""


class Conversations:
    """Answered turns of a server.

    If all turns together have more than `max_tokens` tokens, the least recently used ones are dropped. `new_id` makes
    an id for a new conversation of an owner.
    """

    def __init__(self, *, max_tokens: int, new_id: Callable[[str], str]) -> None:
        self._max_tokens = max_tokens
        self._new_id = new_id
        self._tokens = 0
        self._turns: OrderedDict[str, AnsweredTurn] = OrderedDict()
        self._by_digest: dict[str, list[str]] = {}
        self._repeated: set[str] = set()
        """Digests that several turns had, even if only one of these turns is left."""
        self._last: dict[str, str] = {}
        """Last turn of each conversation."""
        self._unanswered: OrderedDict[str, str] = OrderedDict()
        """Owner of each conversation without an answered first turn, because its client may still use the id."""
        self._beginning: Counter[tuple[str, str]] = Counter()
        """Requests in progress that continue no turn, by their conversation and its owner."""

    def __len__(self) -> int:
        return len(self._turns)

    def last_turn(self, conversation_id: str | None, owner: str) -> AnsweredTurn | None:
        """Last turn of a conversation of this owner."""
        turn = self._turns.get(self._last.get(conversation_id or "", ""))
        return turn if turn is not None and turn.owner == owner else None

    def find(
        self,
        asked: DigestedMessages,
        *,
        conversation_id: str | None,
        owner: str,
        user: str | None,
        tools: DigestedTools,
        ambiguous: Collection[str] = (),
        called: AnsweredTurn | None = None,
    ) -> Continuation:
        """Find the turn that a request continues.

        `ambiguous` are digests that several turns of other servers have. `called` is the turn of the conversation with
        the calls whose results the request begins with. Raises `APIError` if the id is unknown, or if
        the tools differ from those at the beginning of the conversation, or if it is of another user.
        """
        messages = asked.messages
        if conversation_id is not None:
            return self._by_id(asked, conversation_id, owner=owner, user=user, tools=tools, called=called)
        answered = count_answered(messages)
        if not answered:
            return _new(messages, "new", self._new_id(owner))
        known = self._by_digest.get(digest := conversation_digest(owner, user, tools, asked, until=answered), ())
        if digest in ambiguous or (known and digest in self._repeated):
            return _new(messages, "ambiguous", self._new_id(owner))
        if not known:
            return _new(messages, "unknown prefix", self._new_id(owner))
        before = self._turns[known[0]]
        self._turns.move_to_end(before.turn_id)
        if not before.version_runs:
            return _retired(before, messages)
        return Continuation(
            conversation_id=before.conversation_id,
            before=before,
            new=messages[answered:],
            history=messages,
            joined="fork" if before.in_progress or before.successors else "prefix",
        )

    def after(
        self,
        turn_id: str,
        asked: DigestedMessages,
        *,
        owner: str,
        user: str | None,
        tools: DigestedTools,
        instructions: str | None,
    ) -> Continuation:
        """Place after a turn, with new messages. Raises `APIError` if the request cannot continue from that turn."""
        before = self.answered(turn_id, owner)
        _check_user(before, user)
        first = before.messages[0]
        began = first.content if first.role == "system" else ""
        if instructions is not None and began != instructions and not began.startswith(f"{instructions}\n\n"):
            message = "the conversation began with other instructions. Start another one with these"
            raise invalid_request(message, param="instructions", code="unsupported_value")
        if before.digested_tools.digest != tools.digest:
            raise invalid_request("the conversation began with other tools. Start another one", param="tools")
        if any(message.role == "assistant" for message in asked.messages):
            message = (
                "with previous_response_id, the input has only what is new, and no messages or calls of the assistant. "
                "Leave these out, or leave previous_response_id out and send the whole conversation"
            )
            raise invalid_request(message, param="input")
        _check_results(before, asked.messages)
        joined: Joined = "fork" if before.in_progress or before.successors else "response"
        return self._placed(before, asked.messages, joined)

    def answered(self, turn_id: str, owner: str) -> AnsweredTurn:
        """Return a turn of this owner. Raises `APIError` 404 if the owner has no such turn."""
        turn = self._turns.get(turn_id)
        if turn is None or turn.owner != owner:
            message = f"no response {turn_id!r}. Leave previous_response_id out and send the whole conversation"
            raise APIError(404, message, param="previous_response_id", code="previous_response_not_found")
        self._turns.move_to_end(turn_id)
        return turn

    def _by_id(
        self,
        asked: DigestedMessages,
        conversation_id: str,
        *,
        owner: str,
        user: str | None,
        tools: DigestedTools,
        called: AnsweredTurn | None,
    ) -> Continuation:
        """Place after the last turn, or in a whole conversation after the turn that its messages end with.

        Results of calls are placed after their turn, also if the answer to a first attempt to send them was lost.
        """
        messages = asked.messages
        before = self.last_turn(conversation_id, owner)
        begins = before is None or not before.version_runs
        if (begins and self._beginning[conversation_id, owner]) or (before is not None and before.in_progress):
            raise busy_error(f"a turn of conversation {conversation_id} is in progress. Wait for its end")
        if before is None and self._unanswered.get(conversation_id) == owner:
            return _new(messages, "new", conversation_id)
        if before is None:
            raise unknown_conversation(conversation_id)
        _check_user(before, user)
        if before.digested_tools.digest != tools.digest:
            raise invalid_request(
                f"conversation {conversation_id} began with other tools. Start another conversation", param="tools"
            )
        known = len(before.messages)
        whole = len(messages) > known and asked.digests[:known] == before.digests
        new = messages[known:] if whole else messages
        others = ("assistant",) if whole else ("assistant", "system")  # a system message can only begin a conversation
        if any(message.role in others for message in new):
            if (branch := self._branch(asked, before, user=user, tools=tools)) is not None:
                return branch
            raise invalid_request(
                f"messages are neither the new messages of conversation {conversation_id} nor the whole conversation. "
                "Send one of the two",
                param="messages",
            )
        if called is not None and called is not before:
            return self._placed(called, new, "fork")
        _check_results(before, new)
        return self._placed(before, new, "id")

    def _branch(
        self, asked: DigestedMessages, last: AnsweredTurn, *, user: str | None, tools: DigestedTools
    ) -> Continuation | None:
        """Place after an earlier turn of the conversation of `last`, which a whole conversation goes on from."""
        answered = count_answered(asked.messages)
        digest = conversation_digest(last.owner, user, tools, asked, until=answered)
        alike = [self._turns[turn_id] for turn_id in self._by_digest.get(digest, ())]
        own = [turn for turn in alike if turn.conversation_id == last.conversation_id]
        return self._placed(own[-1], asked.messages[answered:], "fork") if own else None

    def _placed(self, before: AnsweredTurn, new: tuple[Message, ...], joined: Joined) -> Continuation:
        """Place of new messages after a turn."""
        self._turns.move_to_end(before.turn_id)
        history = (*before.messages, *new)
        if not before.version_runs:
            return _retired(before, history)
        name = before.conversation_id
        return Continuation(conversation_id=name, before=before, new=new, history=history, joined=joined)

    def may_begin(self, conversation_id: str, owner: str) -> bool:
        """True if a request with this id begins a conversation, because no turn of it was answered so far."""
        return self._unanswered.get(conversation_id) == owner or bool(self._beginning[conversation_id, owner])

    def known(self, turn_id: str) -> AnsweredTurn | None:
        """Turn with this id, or None if it is not in memory."""
        return self._turns.get(turn_id)

    def set_last(self, turn: AnsweredTurn) -> None:
        """Make this turn the one that a request with the conversation's id continues."""
        self._last[turn.conversation_id] = turn.turn_id

    def keep_only(self, digest: str, turn_ids: Collection[str]) -> None:
        """Forget the turns with this digest except `turn_ids`, because other servers have dropped or erased them."""
        for turn_id in set(self._by_digest.get(digest, ())) - set(turn_ids):
            self._forget(self._turns[turn_id])

    def forget(self, turn_id: str) -> None:
        """Forget a turn that other servers have dropped or erased."""
        if turn_id in self._turns:
            self._forget(self._turns[turn_id])

    def drop(self, conversation_id: str) -> None:
        """Forget a conversation that other servers have dropped or erased."""
        self._unanswered.pop(conversation_id, None)
        for turn in tuple(self._turns.values()):
            if turn.conversation_id == conversation_id:
                self._forget(turn)

    def add(self, turn: AnsweredTurn, *, is_last: bool) -> None:
        """Remember an answered turn, and drop the least recently used turns if they have too many tokens.

        `is_last` is True if a request with the conversation's id continues this turn.
        """
        self._unanswered.pop(turn.conversation_id, None)
        if turn.turn_id in self._turns:
            self._forget(self._turns[turn.turn_id])
        self._turns[turn.turn_id] = turn
        self._tokens += turn.size
        if is_last:
            self._last[turn.conversation_id] = turn.turn_id
        alike = self._by_digest.setdefault(turn.digest, [])
        alike.append(turn.turn_id)
        if len(alike) > 1:
            self._repeated.add(turn.digest)
        while self._tokens > self._max_tokens and len(self._turns) > 1:
            self._forget(next(iter(self._turns.values())))

    def count_in_progress(self, place: Continuation, owner: str, change: int) -> None:
        """Count a request that begins (1) or ends (-1) at its place.

        While it is in progress, another request with the id of its conversation is refused.
        """
        if place.before is not None:
            place.before.in_progress += change
            return
        key = place.conversation_id, owner
        self._beginning[key] += change
        if not self._beginning[key]:
            del self._beginning[key]

    def keep_open(self, conversation_id: str, owner: str) -> None:
        """Keep the id of a conversation valid if its first turn was aborted or failed, because its client knows it."""
        if conversation_id not in self._last:
            self._unanswered[conversation_id] = owner
            if len(self._unanswered) > _MOST_UNANSWERED:
                self._unanswered.popitem(last=False)

    def erase(self, is_erased: Callable[[AnsweredTurn], bool]) -> None:
        """Forget the conversations that have an erased turn."""
        names = {turn.conversation_id for turn in self._turns.values() if is_erased(turn)}
        for turn in tuple(self._turns.values()):
            if turn.conversation_id in names:
                self._forget(turn)

    def retire(self, version: ServedVersion) -> None:
        """Release the tokens and the model of a version, but keep the messages of its conversations."""
        for turn in self._turns.values():
            if turn.version is version:
                self._tokens -= turn.size
                turn.version = turn.transcript = None

    def _forget(self, turn: AnsweredTurn) -> None:
        del self._turns[turn.turn_id]
        self._tokens -= turn.size
        if self._last.get(turn.conversation_id) == turn.turn_id:
            del self._last[turn.conversation_id]
        others = self._by_digest[turn.digest]
        others.remove(turn.turn_id)
        if not others:
            del self._by_digest[turn.digest]
            self._repeated.discard(turn.digest)


def count_answered(messages: Sequence[Message]) -> int:
    """Number of messages up to and including the last reply, and 0 before the first reply."""
    return max((index + 1 for index, message in enumerate(messages) if message.role == "assistant"), default=0)


def busy_error(message: str) -> APIError:
    """409 for a conversation that has a turn in progress."""
    return APIError(409, message, param="conversation_id", code="conversation_busy", retry_after_s=_BUSY_S)


def unknown_conversation(conversation_id: str) -> APIError:
    """404 for a conversation that the key does not have, or that is not in memory any more."""
    message = f"no conversation {conversation_id!r}. Leave conversation_id out and send the whole conversation"
    return APIError(404, message, param="conversation_id", code="conversation_not_found")


def _check_results(before: AnsweredTurn, new: Sequence[Message]) -> None:
    """Raise `APIError` if the turn has calls and the request does not begin with their results."""
    if before.messages[-1].tool_calls and new[0].role != "tool":
        message = f"the last reply has calls. Send their results first, for {', '.join(before.call_ids)}"
        raise invalid_request(message, param="messages")


def _check_user(before: AnsweredTurn, user: str | None) -> None:
    """Raise `APIError` if a request names another user, because that user would read this user's messages."""
    if None not in (user, before.user) and user != before.user:
        raise invalid_request("the conversation is of another user. Start another one", param="user")


def _retired(before: AnsweredTurn, history: tuple[Message, ...]) -> Continuation:
    """Place in a conversation that another version has to read from its beginning."""
    return replace(_new(history, "other version", before.conversation_id), retired_turn=before.turn_id)


def _new(messages: tuple[Message, ...], joined: Joined, conversation_id: str) -> Continuation:
    return Continuation(conversation_id=conversation_id, before=None, new=messages, history=messages, joined=joined)
