"""Rule of Prefect's server that a run which is Completed is never started again.

Prefect lets a Completed run be scheduled and started again, unless the flow keeps its result, which the flows of this
project do not need. Several parties start runs again: the automations, the service of `lost_runs`, the
supervisor of one machine, and a worker that was given a lost run. None of them can look at the state of a run and
change it in one step. A process that was declared lost may be alive and complete the run in between. Without this rule
the Completed run would then be trained a second time. The server checks the rule while it holds the lock of the run.

A person may still force a state on the page of the run (Change state). Retry does not force, and is refused as well.
"""

from __future__ import annotations

from typing import Any

from prefect.server.orchestration.core_policy import CoreFlowPolicy
from prefect.server.orchestration.dependencies import ORCHESTRATION_DEPENDENCIES
from prefect.server.orchestration.policies import FlowRunOrchestrationPolicy
from prefect.server.orchestration.rules import FlowRunOrchestrationRule
from prefect.server.schemas.states import StateType


class CompletedRunsStay(FlowRunOrchestrationRule):
    """Refuses to schedule or start a Completed run, and answers with its present state."""

    FROM_STATES: set[StateType | None] = {StateType.COMPLETED}  # noqa: RUF012, as in Prefect
    TO_STATES: set[StateType | None] = {StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING}  # noqa: RUF012, as in Prefect

    async def before_transition(self, *_: Any) -> None:
        """Keep the present state."""
        await self.reject_transition(None, "The run is Completed and is not started again. Start a new run instead.")


class FlowPolicy(FlowRunOrchestrationPolicy):
    """Prefect's rules for the states of flow runs, after the rule of this module."""

    @staticmethod
    def priority() -> list[Any]:
        """Rules in the order in which they are applied."""
        return [CompletedRunsStay, *CoreFlowPolicy.priority()]


def install() -> None:
    """Let the Prefect server of this process apply `FlowPolicy` to each state that a client proposes."""

    async def provide() -> type[FlowRunOrchestrationPolicy]:
        return FlowPolicy

    ORCHESTRATION_DEPENDENCIES["flow_policy_provider"] = provide
