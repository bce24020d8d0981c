from __future__ import annotations

import asyncio

import pytest

from tests.clock import IdleClockLoop


@pytest.fixture
def idle_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Event loops in which a timeout expires only when nothing else is ready."""
    monkeypatch.setattr(asyncio.events, "new_event_loop", IdleClockLoop)
