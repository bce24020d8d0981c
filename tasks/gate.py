"""Stage 8: may the candidate serve?"""

from __future__ import annotations

from grpo.config.evaluation import GateSettings
from grpo.evaluation.document import Decision, Evaluation
from grpo.evaluation.gates import gate as judge
from tasks.stage import Clock, StageResult, stage


class GateResult(StageResult):
    """The decision with its numbers."""

    decision: Decision


@stage
def gate(evaluation: Evaluation, settings: GateSettings) -> GateResult:
    """Hold the evaluation against every gate."""
    clock = Clock()
    return GateResult(decision=judge(evaluation, settings), compute_s=clock.seconds)
