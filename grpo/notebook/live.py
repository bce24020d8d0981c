"""Progress bar and curves of a training, in the cell of the notebook that runs it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from html import escape
from pathlib import Path
from typing import Any

from grpo import progress
from grpo.notebook import history
from grpo.notebook.callbacks import Callback, TrainingControl
from grpo.notebook.diagnostics import IterationRecord

_BETWEEN_S = 0.5  # between two redraws of the bar; only the end of an iteration redraws the curves


def in_notebook() -> bool:
    """Return True in a kernel of Jupyter, False in a script, in a terminal and in IPython's shell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class LiveView(Callback):
    """Bar with the iteration, the stage and the episodes that are done, above the curves of reward and success."""

    def __init__(self, records: Sequence[IterationRecord], evaluations: history.Evaluations, iterations: int) -> None:
        """Show these records and evaluations, to which the trainer adds."""
        self._records, self._evaluations, self._iterations = records, evaluations, iterations
        self._curves = ""
        self._stage = "starting"
        self._share = 0.0  # of the iteration that runs: half of it is the rollout, the other half the update
        self._drawn_s = 0.0
        self._lock = threading.Lock()
        self._handle: Any = None
        self._observing = ExitStack()

    def on_train_begin(self, control: TrainingControl) -> None:
        """Open the output. The stages report to it from their threads."""
        from IPython.display import HTML, display

        self._make, self._curves = HTML, self._draw_curves()
        self._handle = display(HTML(self._html()), display_id=True)
        self._observing.enter_context(progress.observed(self._observe))

    def on_iteration_end(self, record: IterationRecord, checkpoint: Path, control: TrainingControl) -> None:
        """Draw the curves with this iteration."""
        self._curves, self._stage, self._share = self._draw_curves(), history.describe(record), 0.0
        self._update()

    def on_evaluate(self, index: int, metrics: Mapping[str, float], control: TrainingControl) -> None:
        """Draw the curves with this evaluation."""
        self._curves, self._share = self._draw_curves(), 0.0
        self._update()

    def on_train_end(self, control: TrainingControl) -> None:
        """Draw the last state, with the evaluation after the last iteration."""
        self._observing.close()
        records = self._records
        self._curves, self._share = self._draw_curves(), 0.0
        ended = f"stopped: {control.stop_reason}" if control.stop_reason else "done"
        complete = control.stop_reason is not None or len(records) >= control.iterations
        last = [history.describe(records[-1])] if records else []
        self._stage = "; ".join([ended if complete else "interrupted", *last])
        self._update()

    def _observe(self, stage: str, done: int, total: int, numbers: dict[str, float]) -> None:
        start = {"rollout": 0.0, "train": 0.5}.get(stage)
        self._stage = f"{stage} {done} of {total}"
        if start is not None:
            self._share = start + 0.5 * done / max(1, total)
        if time.monotonic() - self._drawn_s >= _BETWEEN_S:
            self._update()

    def _update(self) -> None:
        with self._lock:
            self._drawn_s = time.monotonic()
            self._handle.update(self._make(self._html()))

    def _draw_curves(self) -> str:
        return history.curves_html(self._records, self._evaluations) if self._records else ""

    def _html(self) -> str:
        done, total = len(self._records), self._iterations
        bar = f'<progress value="{done + self._share:.2f}" max="{total}" style="width: 20em"></progress>'
        return f"<div>{bar} {done} of {total} iterations; {escape(self._stage)}</div>{self._curves}"
