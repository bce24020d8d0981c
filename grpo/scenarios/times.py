"""Times as other programs write them, as instants that can be compared."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime
from typing import Any

_LEAST, _MOST = -(10**15), 10**15  # milliseconds of years from 29,700 BC to 33,700

_TIME_OF_DAY = re.compile(r"(\d{1,2}):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?(?:\s*([ap])\.?m\.?)?", re.IGNORECASE)


def instant(value: Any) -> float:
    """Seconds since 1970 of a time, or the number itself. A time without an offset is in UTC.

        2026-11-20T09:00:00+02:00 → 1795330800.0      2026-11-20 07:00:00 UTC → 1795330800.0      17 → 17.0

    Of a time of day, such as 10:04 or 1:30:05 PM, it is the seconds since midnight. Raises `ValueError` if a text is
    neither an ISO 8601 time, nor a time of day, nor a number.
    """
    if isinstance(value, datetime):
        return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value) if _LEAST < value < _MOST else math.nan
    else:
        text = str(value).strip()
        parsed = _iso(text)
        if parsed is None:
            parsed = time_of_day(text)
        if parsed is not None:
            return parsed
        try:
            number = float(text)
        except ValueError:
            number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"not a time: {str(value)[:80]} is neither an ISO 8601 time nor a number")
    return number


def time_of_day(value: Any) -> float | None:
    """Seconds since midnight of a time without a date. None for anything else."""
    match = _TIME_OF_DAY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return None
    if int(match[1]) > 23:  # minutes and seconds
        return None
    hour, minute, second, half = int(match[1]), int(match[2]), float(match[3] or 0), (match[4] or "").lower()
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "p" else 0)
    return 3600 * hour + 60 * minute + second


def _iso(text: str) -> float | None:
    if len(text) < 8 or text.isdigit():
        return None
    for zone in (" UTC", " GMT", " Z"):
        text = f"{text.removesuffix(zone)}Z" if text.endswith(zone) else text
    try:
        parsed = datetime.fromisoformat(text)
        return (parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
