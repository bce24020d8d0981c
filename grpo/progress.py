"""What long work tells whoever watches: how far a stage is, and numbers worth seeing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Observer = Callable[[str, int, int, dict[str, float]], None]
_observers: list[Observer] = []


def report(stage: str, done: int, total: int, **numbers: float) -> None:
    """Tell all observers that `done` of `total` units of a stage are finished."""
    for observer in tuple(_observers):
        observer(stage, done, total, numbers)


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Let `observer(stage, done, total, numbers)` watch while the block runs, from whichever thread reports."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)
