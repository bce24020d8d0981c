"""Progress reports of stages to observers: units done, total, and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Observer = Callable[[str, int, int, dict[str, float]], None]
_observers: list[Observer] = []


def report(stage: str, done: int, total: int, **numbers: float) -> None:
    """Report to all observers that `done` of `total` units of a stage are finished."""
    for observer in tuple(_observers):
        observer(stage, done, total, numbers)


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Call `observer(stage, done, total, numbers)` for each report of any thread while the block runs."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)
