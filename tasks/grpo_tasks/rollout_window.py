"""One window of a continuous rollout → Parquet."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.identity.code import executed_code
from grpo.rollout.live import live_rollouts
from grpo.rollout.windows import QueueState, WindowMetrics
from grpo.tables import read_provenance, write_trajectories
from grpo_tasks.continuous import begin_rollout, window_key
from grpo_tasks.execution.gpu_slots import holds_gpu_slot
from grpo_tasks.execution.stage import stage
from grpo_tasks.execution.user_reads import warn_of_unseen
from grpo_tasks.rollout import RolloutResult
from grpo_tasks.rollout_request import RolloutRequest


class WindowResult(RolloutResult):
    """Trajectories of one window, and how the rollout and the updates overlapped."""

    window: WindowMetrics


@stage
@holds_gpu_slot
def rollout_window(
    request: RolloutRequest,
    iteration: int,
    iterations: int,
    store: str,
    previous: Artifact | None = None,
) -> WindowResult:
    """Publish the checkpoint to the rollout that goes on after window `previous`, and take the window of `iteration`.

    If this process has no such rollout, one begins with the unfinished groups of `previous`.
    """
    from grpo.learner.inference_backend import make_inference_backend

    artifacts = ArtifactStore(store)
    policy = make_inference_backend(artifacts, request.checkpoint, request.settings)
    code = executed_code([request])
    live = None if previous is None else live_rollouts.claim(window_key(store, previous))
    if live is not None:
        live.publish(policy)
    else:
        live = begin_rollout(
            policy,
            request,
            artifacts,
            window=iteration,
            windows=iterations,
            state=_state_after(artifacts, previous),
            code=code,
        )
    try:
        taken, busy_share = live.take()
        window, metrics = taken.window, taken.window.metrics(busy_share)
        provenance = {"policy": policy.hash, "part": str(window.index), "queue": window.state.model_dump_json()}
        with artifacts.new_file("rollout", ".parquet") as new:
            write_trajectories(new.path, window.trajectories, provenance=provenance)
    except BaseException:
        live.close()
        raise
    live_rollouts.keep(window_key(store, new.artifact), live)
    if code is not None:
        warn_of_unseen("rollout_window", code, taken.unseen)
    return WindowResult(rollout=new.artifact, episodes=len(window.trajectories), window=metrics, reads=taken.reads)


def _state_after(artifacts: ArtifactStore, window: Artifact | None) -> QueueState:
    if window is None:
        return QueueState()
    return QueueState.model_validate_json(read_provenance(artifacts.path(window))["queue"])
