"""Find the column that orders the messages of a conversation, by names and values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

from grpo.data_errors import try_call
from grpo.scenarios.times import instant, time_of_day

Row = Mapping[str, Any]
"""Values of a record by their places, see `leaves`."""

_CREATED = ("createdat", "timestamp", "created", "createddate", "datecreated", "createtime", "datetime", "sentat")
_TIMES = (*_CREATED, "absolutetime", "time", "date", "ts")
_OF_A_MESSAGE = ("message", "msg", "comment", "event", "reply", "post")
"""Words before the name of a time that is the time of the message. With another word, e.g. in `due_date`, it is not."""
_NUMBERS = ("turn", *(f"{a}{b}" for a in ("turn", "message", "msg") for b in ("index", "number")))
_COUNTERS = (
    "seq", "sequence", "seqno", "sequencenumber", "messageorder", "order", "position", "step", "index", "idx", "n",
    "line", "lineno", "linenumber", "turnid", "utteranceid", "utteranceindex",
)  # fmt: skip
"""Names of a number that orders the messages of a conversation if it counts them."""
_DATES = ("date", "day", "createddate")
MESSAGE_IDS = tuple(f"{a}id" for a in _OF_A_MESSAGE)
"""Names of a message's id."""
_ORDERS = (*_TIMES, *(f"{a}{b}" for a in _OF_A_MESSAGE for b in _TIMES), *_NUMBERS)


def find_order(rows: Sequence[Row], group: str | None) -> str | list[str] | None:
    """Column that orders the rows of a conversation: the first known name, of the time or the number of a message.

    If the times of day have a date in another column, or if messages have the same time and ids that rise with it, it
    is a list of both columns. Times of day without a date only tell whether the newest message comes first.

    All values of the column are times or numbers, and they differ within conversations, because the time of a ticket
    is the same in all of its rows. Without such a column, the time of creation is taken as it is. If the reader
    cannot read it, it refuses the rows instead of keeping an order that may be wrong.
    """
    places = dict.fromkeys(place for row in rows for place in row)
    named = sorted((p for p in places if _time_word(p) in _ORDERS), key=lambda p: _ORDERS.index(_time_word(p)))
    differing = [place for place in named if _differs(rows, group, place)]
    readable = [place for place in differing if _are_times(rows, place)]
    for place in readable:
        if any(time_of_day(row.get(place)) is not None for row in rows):
            date = next((p for p in places if _time_word(p) in _DATES and p != place and _are_times(rows, p)), None)
            if date is not None:
                return [date, place]
            if _falls(rows, group, place):
                return place
        else:
            number = next((p for p in places if folded(p) in MESSAGE_IDS and _breaks_ties(rows, group, place, p)), None)
            return place if number is None else [place, number]
    created = (place for place in differing if _time_word(place) in _CREATED and place not in readable)
    return next(chain(created, (p for p in places if folded(p) in _COUNTERS and _counts(rows, group, p))), None)


def _conversations(rows: Sequence[Row], group: str | None) -> list[list[Row]]:
    """Rows of each conversation, in the order of the table."""
    conversations: dict[str, list[Row]] = {}
    for row in rows:
        conversations.setdefault(str(row.get(group or "")), []).append(row)
    return list(conversations.values())


def _falls(rows: Sequence[Row], group: str | None, place: str) -> bool:
    """True if the times of a conversation fall more often than they rise, so that the newest message comes first."""
    steps = [
        instant(after[place]) - instant(before[place])
        for conversation in _conversations(rows, group)
        for before, after in pairwise(conversation)
    ]
    return sum(step < 0 for step in steps) > sum(step > 0 for step in steps)


def _breaks_ties(rows: Sequence[Row], group: str | None, time: str, place: str) -> bool:
    """True if messages of the same time have different numbers here, and the numbers rise with the time."""
    if _differ_all(rows, group, time) or not _differ_all(rows, group, place) or not _are_times(rows, place):
        return False
    rises = 0
    for conversation in _conversations(rows, group):
        ordered = sorted((instant(row[time]), instant(row[place])) for row in conversation)
        steps = [(a, b) for a, b in pairwise(ordered) if a[0] < b[0]]
        if any(a[1] > b[1] for a, b in steps):
            return False
        rises += len(steps)
    return rises > 0


def _counts(rows: Sequence[Row], group: str | None, place: str) -> bool:
    """True if this column counts the messages of each conversation: different whole numbers without large gaps."""
    if not _differ_all(rows, group, place) or not _are_times(rows, place):
        return False
    for conversation in _conversations(rows, group):
        numbers = [instant(row[place]) for row in conversation]
        if any(number % 1 for number in numbers) or max(numbers) - min(numbers) >= 2 * len(numbers):
            return False
    return True


def _are_times(rows: Sequence[Row], place: str) -> bool:
    return all(_is_time(row.get(place)) for row in rows)


def _differ_all(rows: Sequence[Row], group: str | None, place: str) -> bool:
    """True if all rows of a conversation have different values."""
    return len({(str(row.get(group or "")), str(row.get(place))) for row in rows}) == len(rows)


def _differs(rows: Sequence[Row], group: str | None, place: str) -> bool:
    """True if a column has several values within a conversation, or if no conversation has two rows."""
    values: dict[str, list[str]] = {}
    for row in rows:
        values.setdefault(str(row.get(group or "")), []).append(str(row.get(place)))
    several = [inner for inner in values.values() if len(inner) > 1]
    return not several or any(len({*inner}) > 1 for inner in several)


def is_time_name(place: str) -> bool:
    """True for the name of a message's time, also with its unit, as in `timestamp_ms`."""
    name = _time_word(place)
    return name in _ORDERS or name.removesuffix("ms") in _TIMES or name.removesuffix("usec") in _TIMES


def _time_word(place: str) -> str:
    """Name of a column without punctuation and without the zone, as in `datetime_utc`."""
    return folded(place).removesuffix("utc")


def folded(name: str) -> str:
    """A name in lower case, without spaces and punctuation."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _is_time(value: Any) -> bool:
    return not isinstance(try_call(lambda: instant(value)), Exception)
