"""Plan of a study: search space, trials, shared stages and upper bounds of the episodes."""

from __future__ import annotations

from grpo.config.search_space import SearchSpace
from grpo.config.tuning import TuneConfig
from grpo.storage.credentials import masked
from grpo.storage.home import home
from grpo_flows.plans.outline import Outline, follow
from grpo_flows.tune import shared_stages
from grpo_local.preflight import check_tuning


def plan_study(config: TuneConfig) -> Outline:
    """Follow the shared stages of a study through the cache, without opening a study."""
    config = check_tuning(config)
    base = config.base
    followed = follow(lambda: shared_stages(config))
    split = None if followed.result is None else followed.result[1]
    iterations = config.iterations or base.training.iterations
    episodes = iterations * base.rollout.scenarios * base.rollout.group_size
    validation = "unknown until validation_split has run"
    if split is not None:
        most = config.intermediate_evals * split.heldout * base.evaluation.samples
        validation = f"at most {most:,} on {split.heldout} validation scenarios in each trial"
    return Outline(
        title=f"study {config.name} of {config.metric}",
        facts={
            "trials": f"{config.n_trials}, {config.parallel} at once. Finished ones of the same study count",
            "search space": _space(config.space),
            "training episodes": f"about {episodes:,} in each trial, {episodes * config.n_trials:,} in all",
            "validation episodes": validation,
            "shared stages": followed.stages,
            "storage": masked(config.storage or f"sqlite:///{home() / 'tuning.db'}"),
            "output": str(home() / config.name),
        },
    )


def _space(space: SearchSpace) -> str:
    return "; ".join(
        f"{path} {dimension.model_dump(mode='json', exclude_none=True, exclude_unset=True)}"
        for path, dimension in space.items()
    )
