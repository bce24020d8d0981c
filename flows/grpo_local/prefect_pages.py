"""Complete answers of Prefect's server.

Each of its filters returns one page, by default of 200 rows, and does not say that there are more. A team's database
has thousands of runs, so that a caller that reads only the first page does not see a run that was lost last week. Read
with the functions of this module, unless the filter itself makes a page enough, e.g. the one row with a name or an id.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import httpx

Row = TypeVar("Row")
STABLE = "ID_DESC"
"""Sort of runs that are read in several pages. Ids are unique, while runs with equal times have no order.

It says nothing about age, because Prefect's ids are random numbers.
"""
_OVERLAP = 10
"""Each page repeats one of this number of its rows."""


def all_pages(read: Callable[[int], Sequence[Row]], key: Callable[[Row], Hashable]) -> Iterator[Row]:
    """Call `read` with the offset of one page after another, and yield each row once. `key` returns a row's id.

    Only two pages are in memory. The rows must be in a stable order (`STABLE`). If rows are added or leave the filter
    while pages are read, later rows move to other pages. Therefore a page begins before the last one ends:

        offset   0 ─────────── 200
                           180 ─────────── 380
                                       360 ────── 412    shorter than the first page, so it is the last one

    No row is left out if fewer than a tenth of a page leaves between two requests, and repeated rows are skipped.
    The server decides how long a page is (`PREFECT_SERVER_API_DEFAULT_LIMIT`), and refuses a request for more.
    """
    page, offset, known = read(0), 0, frozenset[Hashable]()
    size = len(page)
    while page:
        yield from (row for row in page if key(row) not in known)
        if len(page) < size:
            return
        known, offset = frozenset(map(key, page)), offset + size - size // _OVERLAP
        page = read(offset)


def asked(client: httpx.Client, path: str, **where: Any) -> Iterator[dict[str, Any]]:
    """All rows of a filter of Prefect's API. Raises `httpx.HTTPError`."""

    def read(offset: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = client.post(path, json={**where, "offset": offset}).raise_for_status().json()
        return rows

    return all_pages(read, itemgetter("id"))
