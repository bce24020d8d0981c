"""Times as other programs write them, as instants that can be compared."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any

_LEAST, _MOST = -(10**15), 10**15  # milliseconds of years from 29,700 BC to 33,700


def instant(value: Any) -> float:
    """Seconds since 1970 of a time, or the number itself. A time without an offset is in UTC.

        2026-11-20T09:00:00+02:00 → 1795330800.0      2026-11-20 07:00:00 UTC → 1795330800.0      17 → 17.0

    Raises `ValueError` if a text is neither an ISO 8601 time nor a number.
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
        if parsed is not None:
            return parsed
        try:
            number = float(text)
        except ValueError:
            number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"not a time: {str(value)[:80]} is neither an ISO 8601 time nor a number")
    return number


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
