"""Conversations of the serving log: turns by their parents, with the feedback on them.

turns       1 ← 2 ← 3        3 has no answered turn after it: one conversation, 1 2 3
fork        1 ← 2, 1 ← 4     two conversations: 1 2 has the conversation's id, 1 4 has its id and the id of turn 4
n = 2       1 ← 2a, 1 ← 2b   one conversation: 1 2b if 2b was continued, else 1 2a, choice 0
feedback    the last value of each field. Feedback on the conversation comes before feedback on its turns

turns = answered + aborted + failed + erased
answered = joined + unjoined(reason)
feedback = joined + duplicates + quarantined(reason)

Feedback counts only if it comes from the key that had the conversation, or from an admin. Outcomes need the scope
`outcomes`. Without it they are dropped, and the rest of the feedback is used. The server already refuses both, but this
reader checks them again, because another program may have written the record.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import fmean
from typing import Any, TypeVar

from grpo.log.folder import Problem
from grpo.log.lines import encode
from grpo.log.records import Feedback, Record, ServedTurn
from grpo.messages import Message
from grpo.scenario import Expected

RecordT = TypeVar("RecordT", ServedTurn, Feedback)
_FIELDS = ("rating", "comment", "correction", "success", "expected", "world")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Last value of each field of the feedback on a turn or conversation. None if none was given."""

    rating: float | None = None
    comment: str | None = None
    correction: Message | None = None
    success: bool | None = None
    expected: Expected | None = None
    world: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedFeedback:
    """Feedback that was not joined."""

    feedback: Feedback
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedConversation:
    """Chain of turns from the first one, with the feedback on them."""

    id: str
    turns: tuple[ServedTurn, ...]
    judgement: Judgement
    """Feedback on the conversation. If it has no rating, the mean rating of its turns is taken. If it has no `success`,
    `expected` or `world`, the last one of its turns is taken."""
    turn_judgements: Mapping[str, Judgement]
    """Feedback on single turns, by their id."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """Messages of the conversation."""
        return tuple(turn.message for served in self.turns for turn in served.turns)

    @property
    def reward(self) -> float | None:
        """1 for a verified success, 0 for a verified failure, None if the outcome was not verified."""
        return None if self.judgement.success is None else float(self.judgement.success)

    @property
    def model(self) -> str:
        """Name and version of the model that gave the last reply."""
        return self.turns[-1].model

    @property
    def category(self) -> str:
        """Category. If it changed within the conversation, the last turn's one."""
        return self.turns[-1].metadata.get("category", "general")

    @property
    def domain(self) -> str:
        """Domain as the client named it, which may be a word that no scenario has."""
        return self.turns[-1].metadata.get("domain", "general")

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """Tools that the client offered in any turn."""
        return tuple({tool["name"]: tool for turn in self.turns for tool in turn.tools}.values())

    @property
    def consent(self) -> str:
        """Consent of the user. Empty if the turns differ, because then it does not hold for the whole conversation."""
        return _common(turn.consent for turn in self.turns)

    @property
    def licence(self) -> str:
        """Licence. Empty if the turns differ."""
        return _common(turn.licence for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinCounts:
    """Counts of a join, see this module."""

    turns: int
    """Turns with different ids."""
    answered: int
    aborted: int
    failed: int
    erased: int
    duplicate_turns: int
    damaged: int
    """Lines and rows that are not records."""
    conversations: int
    forks: int
    """Conversations that share their first turns with another one."""
    unjoined: Mapping[str, int]
    """Answered turns in no conversation, by reason."""
    feedback: int
    """Feedback records, duplicates included."""
    duplicate_feedback: int
    joined_feedback: int
    dropped_outcomes: int
    """Joined feedback without its outcome, because its key lacked the scope."""
    quarantined_feedback: Mapping[str, int]
    """By reason."""

    def flat(self) -> dict[str, int]:
        """Counts by name. Counts by reason are named like `feedback quarantined: unknown conversation`."""
        names = ("unjoined", "quarantined_feedback")
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in names}
        unjoined = {f"turns unjoined: {reason}": count for reason, count in self.unjoined.items()}
        return {
            **plain,
            **unjoined,
            **{f"feedback quarantined: {reason}": count for reason, count in self.quarantined_feedback.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Conversations of a log by their start, and all that was not joined."""

    conversations: tuple[ServedConversation, ...]
    quarantined: tuple[QuarantinedFeedback, ...]
    problems: tuple[Problem, ...]
    """Lines and rows that are not records."""
    counts: JoinCounts


_MENTION = re.compile(r"\b(?:conversation|correction)-([0-9A-Za-z_]+)")
"""Id of a conversation inside the id of its scenario, of a fork, or of a correction."""


def mentioned_conversations(text: str) -> set[str]:
    """Ids of the conversations that a text names by their scenarios or corrections."""
    return set(_MENTION.findall(text))


def scenario_id(conversation_id: str) -> str:
    """Id of the scenario of a conversation."""
    return f"conversation-{conversation_id}"


def join(records: Iterable[Record | Problem]) -> Joined:
    """Join turns to conversations, and feedback to both. The order of records and repeated records change nothing."""
    turns: dict[str, ServedTurn] = {}
    feedback: dict[str, Feedback] = {}
    problems = []
    received: Counter[type] = Counter()
    for record in records:
        if isinstance(record, Problem):
            problems.append(record)
            continue
        received[type(record)] += 1
        if isinstance(record, ServedTurn):
            turns[record.id] = _earlier(record, turns.get(record.id, record))
        else:
            feedback[record.id] = _earlier(record, feedback.get(record.id, record))
    chains, unjoined = _chains(turns)
    joined_turns = {turn.id for chain in chains.values() for turn in chain}
    judged, quarantined, dropped = _judge(feedback.values(), turns, joined_turns)
    conversations = [_conversation(name, chain, judged) for name, chain in chains.items()]
    statuses = Counter(turn.status for turn in turns.values())
    reasons = Counter(item.reason for item in quarantined)
    counts = JoinCounts(
        turns=len(turns),
        answered=statuses["answered"],
        aborted=statuses["aborted"],
        failed=statuses["failed"],
        erased=statuses["erased"],
        duplicate_turns=received[ServedTurn] - len(turns),
        damaged=len(problems),
        conversations=len(conversations),
        forks=len(conversations) - len({chain[0].conversation_id for chain in chains.values()}),
        unjoined=dict(sorted(unjoined.items())),
        feedback=received[Feedback],
        duplicate_feedback=received[Feedback] - len(feedback),
        joined_feedback=len(feedback) - len(quarantined),
        dropped_outcomes=dropped,
        quarantined_feedback=dict(sorted(reasons.items())),
    )
    return Joined(
        conversations=tuple(sorted(conversations, key=lambda item: (item.turns[0].time, item.id))),
        quarantined=tuple(quarantined),
        problems=tuple(sorted(problems, key=lambda problem: (problem.place, problem.line))),
        counts=counts,
    )


def _earlier(record: RecordT, other: RecordT) -> RecordT:
    """The record that was received first. If both have the same time, their content decides."""
    return record if record == other else min(record, other, key=lambda item: (item.time, encode(item)))


def _chains(turns: Mapping[str, ServedTurn]) -> tuple[dict[str, tuple[ServedTurn, ...]], Counter[str]]:
    """Chains of turns by the id of their conversation, and counts of the answered turns in no chain, by reason."""
    answered = [turn for turn in turns.values() if turn.status == "answered"]
    conversing = [turn for turn in answered if not turn.is_completion]
    paths = {turn.id: turn_path(turn, turns) for turn in _ends(conversing, turns)}
    chains = [path for path in paths.values() if not isinstance(path, str)]
    siblings: dict[tuple[str, str | None], set[tuple[datetime, str]]] = defaultdict(set)
    for turn in {turn for chain in chains for turn in chain}:
        siblings[turn.conversation_id, turn.parent].add((turn.time, turn.id))
    first = {min(group)[1] for group in siblings.values()}
    joined = {turn.id for chain in chains for turn in chain}
    unjoined = Counter(_unjoined(turn, turns) for turn in answered if turn.id not in joined)
    return {_name(chain, first): chain for chain in chains}, unjoined


def _name(chain: Sequence[ServedTurn], first: Set[str]) -> str:
    """Id of the conversation. A fork adds the id of the turn at which it leaves the first chain."""
    forked = [turn.id for turn in chain if turn.id not in first]
    return "~".join([chain[0].conversation_id, *forked[-1:]])


def _ends(answered: Sequence[ServedTurn], turns: Mapping[str, ServedTurn]) -> list[ServedTurn]:
    """Last turn of each branch. If a request had several choices and none was continued, only one of them."""
    continued: set[str] = set()
    for turn in answered:
        parent = turns.get(turn.parent or "")
        while parent is not None and parent.id not in continued and parent.conversation_id == turn.conversation_id:
            continued.add(parent.id)
            parent = turns.get(parent.parent or "")
    choices = defaultdict(list)
    for turn in answered:
        choices[turn.conversation_id, turn.request_id].append(turn)
    ends = []
    for group in choices.values():
        if not any(turn.id in continued for turn in group):
            ends.append(min(group, key=lambda turn: (turn.choice, turn.time, turn.id)))
    return ends


def turn_path(turn: ServedTurn, turns: Mapping[str, ServedTurn]) -> tuple[ServedTurn, ...] | str:
    """Turns from the first one of the conversation to this one, or the reason why they do not form a path."""
    path, ids = [turn], {turn.id}
    while path[-1].parent is not None:
        parent = turns.get(path[-1].parent)
        if parent is None:
            return "unknown parent"
        if parent.conversation_id != turn.conversation_id:
            return "parent of another conversation"
        if parent.id in ids:
            return "circular parents"
        path.append(parent)
        ids.add(parent.id)
    return tuple(reversed(path))


def _unjoined(turn: ServedTurn, turns: Mapping[str, ServedTurn]) -> str:
    if turn.is_completion:
        return "completion of a raw prompt"
    path = turn_path(turn, turns)
    return path if isinstance(path, str) else "choice that was not continued"


def _judge(
    feedback: Iterable[Feedback], turns: Mapping[str, ServedTurn], joined: Set[str]
) -> tuple[dict[tuple[str, str | None], list[Feedback]], list[QuarantinedFeedback], int]:
    """Feedback in the order of time by conversation and turn, the feedback that was not joined, and the number of
    feedback that was joined without its outcome."""
    owners: dict[str, set[str]] = defaultdict(set)
    for served in turns.values():
        owners[served.conversation_id].add(served.key)
    with_turns = {turns[name].conversation_id for name in joined}
    judged = defaultdict(list)
    quarantined, dropped = [], 0
    for item in sorted(feedback, key=lambda item: (item.time, item.id)):
        allowed = item if "outcomes" in item.scopes else replace(item, success=None, expected=None, world=None)
        turn = turns.get(item.turn_id or "")
        if item.conversation_id not in owners:
            reason = "unknown conversation"
        elif "admin" not in item.scopes and owners[item.conversation_id] != {item.key}:
            reason = "another key's conversation"
        elif allowed != item and all(getattr(allowed, name) is None for name in _FIELDS):
            reason = "outcome without the scope"
        elif item.turn_id is not None and turn is None:
            reason = "unknown turn"
        elif turn is not None and turn.conversation_id != item.conversation_id:
            reason = "turn of another conversation"
        elif (turn is not None and turn.id not in joined) or item.conversation_id not in with_turns:
            reason = "turn in no conversation"
        else:
            judged[item.conversation_id, item.turn_id].append(allowed)
            dropped += allowed != item
            continue
        quarantined.append(QuarantinedFeedback(feedback=item, reason=reason))
    return judged, quarantined, dropped


def _conversation(
    name: str, chain: tuple[ServedTurn, ...], judged: Mapping[tuple[str, str | None], Sequence[Feedback]]
) -> ServedConversation:
    conversation_id = chain[0].conversation_id
    on_turns = {turn.id: judged[conversation_id, turn.id] for turn in chain if (conversation_id, turn.id) in judged}
    by_turn = {turn_id: _merge(items) for turn_id, items in on_turns.items()}
    whole = _merge(judged.get((conversation_id, None), ()))
    ratings = [judgement.rating for judgement in by_turn.values() if judgement.rating is not None]
    last = _merge(
        sorted((item for items in on_turns.values() for item in items), key=lambda item: (item.time, item.id))
    )
    judgement = Judgement(
        rating=whole.rating if whole.rating is not None or not ratings else fmean(ratings),
        comment=whole.comment,
        correction=whole.correction,
        success=whole.success if whole.success is not None else last.success,
        expected=whole.expected if whole.expected is not None else last.expected,
        world=whole.world if whole.world is not None else last.world,
    )
    return ServedConversation(id=name, turns=chain, judgement=judgement, turn_judgements=by_turn)


def _merge(feedback: Iterable[Feedback]) -> Judgement:
    """The last value of each field."""
    values: dict[str, Any] = {}
    for item in feedback:
        values.update({name: value for name in _FIELDS if (value := getattr(item, name)) is not None})
    return Judgement(**values)


def _common(values: Iterable[str]) -> str:
    """The value that all have, or an empty text if they differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else ""
