"""How far a run is: a bar in Prefect's page that moves with each iteration."""

from __future__ import annotations

import time

from prefect.artifacts import create_progress_artifact, update_progress_artifact

_PAUSE_S = 1.0


class Advance:
    """The progress artifact of one run.

    It is told of every iteration and tells the server once a second at most, so that a run whose stages are all cached
    does not wait for its bar.
    """

    def __init__(self, iterations: int) -> None:
        self._iterations = iterations
        self._artifact = create_progress_artifact(0.0, key="iterations", description=self._text(0))
        self._told = float("-inf")

    def reach(self, done: int) -> None:
        """`done` iterations are finished."""
        if done < self._iterations and time.monotonic() - self._told < _PAUSE_S:
            return
        self._told = time.monotonic()
        update_progress_artifact(self._artifact, 100.0 * done / self._iterations, description=self._text(done))

    def _text(self, done: int) -> str:
        return f"{done} of {self._iterations} iterations of rollout, score and train"
