"""Looks at other processes, each of which may end between the list of them and the look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import psutil

T = TypeVar("T")


def family(process: psutil.Process | None = None) -> list[psutil.Process]:
    """A process, by default this one, and its descendants."""
    process = process or psutil.Process()
    return [process, *process.children(recursive=True)]


def each(processes: Iterable[psutil.Process], look: Callable[[psutil.Process], T]) -> Iterator[T]:
    """What a look at each process returns. Processes that have ended are left out."""
    for process in processes:
        try:
            yield look(process)
        except psutil.NoSuchProcess:
            continue


def listening(processes: Iterable[psutil.Process]) -> set[tuple[str, int]]:
    """Addresses and ports at which processes listen."""
    sockets = each(processes, lambda process: process.net_connections(kind="tcp"))
    return {(one.laddr.ip, one.laddr.port) for some in sockets for one in some if one.status == psutil.CONN_LISTEN}
