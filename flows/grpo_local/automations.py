"""Automations of a Prefect server: they restart lost runs, and notify a webhook of runs that fail or are late.

Prefect's server itself does nothing with a run's heartbeats. If the worker or the machine of a run is gone, the run
would stay Running and hold the place of every later run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events import AutomationCore, EventTrigger, Posture
from prefect.events.actions import CallWebhook, ChangeFlowRunState
from pydantic import SecretStr

from grpo.errors import ConfigError
from grpo_local.settings import CANCELLING_S, IMAGE_S, PENDING_S, SILENCE_S

NOTIFY = "GRPO_NOTIFY_URL"
"""Environment variable with the URL of a webhook, e.g. of Slack, that is notified of failed and late runs."""
STARTS = 5
"""Starts of a run that crashes. After them it stays crashed."""
RECOVERY = tuple(
    f"grpo: {what}"
    for what in (
        "lost runs are crashed",
        "runs that do not begin are scheduled again",
        "cancelled runs end",
        "crashed runs go on",
    )
)
"""Names of the automations that restart lost runs."""
_BLOCK = "grpo-notifications"
_RUN = "prefect.flow-run"
_ENDS = ("Completed", "Failed", "Cancelled", "Crashed", "TimedOut")
_LATER = ("AwaitingRetry", "Scheduled", "Late", "Suspended", "Paused")
_TEXT = (
    '{"text": {{ ("grpo: " ~ flow.name ~ " " ~ flow_run.name ~ " is " ~ event.resource["prefect.state-name"] ~ ": " '
    '~ (event.resource["prefect.state-message"] or "no message") ~ " " ~ (flow_run|ui_url or "")) | tojson }}}'
)
_POOL_TEXT = '{"text": {{ ("grpo: the work pool " ~ work_pool.name ~ " has no worker. Runs wait for one") | tojson }}}'


def write_automations(client: SyncPrefectClient, pools: Sequence[str], sender: str) -> None:
    """Create the automations of these work pools, or update them. If an automation is paused, it stays paused.

    The server restarts only crashed runs of the pool `sender`. Runs of other pools are stages, and the run that sent a
    stage sends it again. The webhook is notified if `GRPO_NOTIFY_URL` is set.
    """
    in_processes = all(client.read_work_pool(pool).type == "process" for pool in pools)
    wanted = [*_recovery(pools, sender, pending_s=PENDING_S if in_processes else IMAGE_S)]
    if url := os.environ.get(NOTIFY):
        wanted += _notifications(_webhook(url), pools)
    for automation in wanted:
        if known := client.read_automations_by_name(automation.name):
            client.update_automation(known[0].id, automation.model_copy(update={"enabled": known[0].enabled}))
        else:
            client.create_automation(automation)


def _recovery(pools: Sequence[str], sender: str, *, pending_s: int) -> list[AutomationCore]:
    return [
        _automation(
            RECOVERY[0],
            "A run without a heartbeat has lost its process, its worker or its machine.",
            _silence(_begun(), {f"{_RUN}.heartbeat", *_named(*_ENDS, *_LATER, "Cancelling")}, SILENCE_S, pools),
            ChangeFlowRunState(
                state=StateType.CRASHED, name=None, message=f"No heartbeat for {SILENCE_S} s: its process is gone."
            ),
        ),
        _automation(
            RECOVERY[1],
            "A worker took the run and is gone.",
            _silence(_named("Pending"), _begun() | _named("Cancelling", *_ENDS, *_LATER), pending_s, pools),
            ChangeFlowRunState(
                state=StateType.SCHEDULED, name="AwaitingRetry", message="The worker that took it did not begin it."
            ),
        ),
        _automation(
            RECOVERY[2],
            "The worker that was to end the run is gone.",
            _silence(_named("Cancelling"), _named("Running", *_ENDS, *_LATER), CANCELLING_S, pools),
            ChangeFlowRunState(
                state=StateType.CANCELLED,
                name=None,
                message="Its worker ended while it was being cancelled.",
                force=True,
            ),
        ),
        _automation(
            RECOVERY[3],
            f"A run that crashed is started again, {STARTS} times at most. Its finished stages are cache hits.",
            _at_once(_named("Crashed"), [sender], {"prefect.run-count": [str(count) for count in range(1, STARTS)]}),
            ChangeFlowRunState(
                state=StateType.SCHEDULED,
                name="AwaitingRetry",
                message="Its process was lost. It continues from its finished stages.",
            ),
        ),
    ]


def _notifications(webhook: UUID, pools: Sequence[str]) -> list[AutomationCore]:
    call = CallWebhook(block_document_id=webhook, payload=_TEXT)
    last = [str(count) for count in (0, *range(STARTS, 100))]
    no_worker = EventTrigger(
        posture=Posture.Reactive,
        expect={"prefect.work-pool.not-ready"},
        match={"prefect.resource.id": "prefect.work-pool.*", "prefect.resource.name": list(pools)},
        threshold=1,
    )
    return [
        _automation(
            "grpo: failed runs are told", "A run has failed.", _at_once(_named("Failed", "TimedOut"), pools, {}), call
        ),
        _automation(
            "grpo: crashed runs are told",
            "A run has crashed and is not started again.",
            _at_once(_named("Crashed"), pools, {"prefect.run-count": last}),
            call,
        ),
        _automation("grpo: late runs are told", "A run waits for a worker.", _at_once(_named("Late"), pools, {}), call),
        _automation(
            "grpo: pools without a worker are told",
            "No worker of a pool is online.",
            no_worker,
            CallWebhook(block_document_id=webhook, payload=_POOL_TEXT),
        ),
    ]


def _webhook(url: str) -> UUID:
    """Prefect block that has the address, encrypted like all secrets of Prefect."""
    if not url.startswith(("https://", "http://")):
        raise ConfigError(
            f"{NOTIFY} is not the URL of a webhook, which begins with http:// or https://. Change it, or unset it"
        )
    block = Webhook(method="POST", url=SecretStr(url), headers={"content-type": "application/json"})
    return UUID(str(block.save(_BLOCK, overwrite=True)))


def _automation(
    name: str, description: str, trigger: EventTrigger, action: ChangeFlowRunState | CallWebhook
) -> AutomationCore:
    return AutomationCore(name=name, description=description, trigger=trigger, actions=[action])


def _silence(after: set[str], expect: set[str], seconds: int, pools: Sequence[str]) -> EventTrigger:
    """Trigger that fires for a run if none of the events `expect` follows within `seconds` after an event."""
    return EventTrigger(
        posture=Posture.Proactive,
        after=after,
        expect=expect,
        for_each={"prefect.resource.id"},
        within=timedelta(seconds=seconds),
        threshold=1,
        match={"prefect.resource.id": f"{_RUN}.*"},
        match_related=_of(pools),
    )


def _at_once(expect: set[str], pools: Sequence[str], labels: dict[str, list[str]]) -> EventTrigger:
    """Trigger that fires at each of these events of a run with these labels."""
    return EventTrigger(
        posture=Posture.Reactive,
        expect=expect,
        for_each={"prefect.resource.id"},
        threshold=1,
        match={"prefect.resource.id": f"{_RUN}.*", **labels},
        match_related=_of(pools),
    )


def _of(pools: Sequence[str]) -> dict[str, str | list[str]]:
    return {"prefect.resource.role": "work-pool", "prefect.resource.name": list(pools)}


def _named(*states: str) -> set[str]:
    """Events of a run that enters a state of one of these names."""
    return {f"{_RUN}.{name}" for name in states}


def _begun() -> set[str]:
    """Events of a run that has begun. Heartbeats are included because the event `Running` may have been lost."""
    return {f"{_RUN}.heartbeat", *_named("Running")}
