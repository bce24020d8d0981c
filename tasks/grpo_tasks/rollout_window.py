"""One window of a continuous rollout → Parquet."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.agent import AnyAgentSettings
from grpo.config.environments import EnvironmentSettings
from grpo.config.renderer import RendererSettings
from grpo.config.rollout import RolloutSettings
from grpo.identity.code import executed_code
from grpo.rollout.live import live_rollouts
from grpo.rollout.windows import QueueState, WindowMetrics
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.tables import read_provenance, write_trajectories
from grpo_tasks.continuous import begin_rollout, window_key
from grpo_tasks.gpu_slots import holds_gpu_slot
from grpo_tasks.rollout import RolloutResult
from grpo_tasks.split import read_split
from grpo_tasks.stage import own_folders, stage, warn_of_unseen


class WindowResult(RolloutResult):
    """Trajectories of one window, and how the rollout and the updates overlapped."""

    window: WindowMetrics


@stage
@holds_gpu_slot
def rollout_window(
    scenarios: Artifact,
    split: Artifact,
    checkpoint: Artifact,
    renderer: RendererSettings | None,
    agent: AnyAgentSettings,
    environment: EnvironmentSettings,
    settings: RolloutSettings,
    iteration: int,
    iterations: int,
    seed: int,
    store: str,
    previous: Artifact | None = None,
) -> WindowResult:
    """Publish `checkpoint` to the rollout that goes on after window `previous`, and wait for the window of `iteration`.

    If this process has no such rollout, one begins with the unfinished groups of `previous`.
    """
    from grpo.learner.inference_backend import policy_in_process

    artifacts = ArtifactStore(store)
    policy = policy_in_process(artifacts, checkpoint)
    code = executed_code((renderer, agent, environment))
    live = None if previous is None else live_rollouts.claim(window_key(store, previous))
    if live is not None:
        live.publish(policy)
    else:
        live = begin_rollout(
            policy,
            artifacts.path(scenarios) / SCENARIOS_FILE,
            read_split(artifacts, split).train,
            renderer=renderer,
            agent=agent,
            environment=environment,
            settings=settings,
            window=iteration,
            windows=iterations,
            state=_state_after(artifacts, previous),
            seed=seed,
            code=code,
            exclude=own_folders(artifacts),
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
