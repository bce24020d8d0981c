"""Start of a continuous rollout, and its stop at the end of the run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING

from grpo.artifacts import Artifact, ArtifactStore
from grpo.environments.episode_parts import make_parts
from grpo.identity.code import UserCode
from grpo.reads.recording import recorded_reads
from grpo.rollout.collect import schedule
from grpo.rollout.continuous import ContinuousRollout
from grpo.rollout.live import LiveRollout, live_rollouts
from grpo.rollout.windows import GroupQueue, QueueState
from grpo.scenario import Scenario
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import read_scenarios
from grpo_tasks.execution.user_reads import own_folders
from grpo_tasks.rollout_request import RolloutRequest
from grpo_tasks.split import read_split

if TYPE_CHECKING:
    from grpo.policy.servers.policy import ServersPolicy
    from grpo.policy.transformers.model import TransformersPolicy
    from grpo.policy.vllm import VLLMPolicy


def begin_rollout(
    policy: TransformersPolicy | VLLMPolicy | ServersPolicy,
    request: RolloutRequest,
    artifacts: ArtifactStore,
    *,
    window: int,
    windows: int,
    state: QueueState,
    code: UserCode | None,
) -> LiveRollout:
    """Begin with window `window` of `windows`, and with version `window` of the policy, on the training split.

    `code` is the user's code that the rollout runs. What it reads is recorded, without the project's own folders.
    """
    settings, table = request.settings, artifacts.path(request.scenarios) / SCENARIOS_FILE
    train = read_split(artifacts, request.split).train
    queue = GroupQueue(
        cache(lambda index: schedule(train, iteration=index, count=settings.scenarios, seed=request.seed)),
        group_size=settings.group_size,
        max_staleness=settings.max_staleness,
        windows=windows,
        error_budget=settings.error_budget,
        policy_hash=policy.hash,
        window=window,
        state=state,
    )
    parts = make_parts(request.parts, policy.tokenizer)

    def read(ids: Sequence[str]) -> list[Scenario]:
        by_id = {scenario.id: scenario for scenario in read_scenarios(table, ids=ids)}
        return [by_id[scenario_id] for scenario_id in ids]

    rollout = ContinuousRollout(
        queue,
        policy,
        parts.environment,
        parts.renderer,
        settings,
        scenarios=read,
        run_seed=request.seed,
        agent=parts.agent,
    )
    reads = nullcontext() if code is None else recorded_reads(code.modules, code.texts)
    return LiveRollout(rollout, reads, exclude=own_folders(artifacts))


def window_key(store: str, window: Artifact) -> str:
    """Key of a window in `live_rollouts`."""
    return f"{window.sha256} {store}"


def end_rollout(store: str, window: Artifact) -> None:
    """End the rollout that goes on after a window, if there is one in this process."""
    live_rollouts.end(window_key(store, window))
