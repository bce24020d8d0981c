"""Plan of an evaluation: model, scenarios, episodes and cached stages."""

from __future__ import annotations

from pathlib import Path

from grpo.config.pipeline import PipelineConfig
from grpo.scenarios.subset import select_scenarios
from grpo_flows.evaluate import evaluated_model, measure
from grpo_flows.plans.outline import Outline, follow
from grpo_local import preflight
from grpo_tasks.model_addresses import stored_checkpoint
from grpo_tasks.split import SplitResult


def plan_evaluation(
    config: PipelineConfig, *, model: str | None, scenarios_file: str | None, num_episodes: int | None, output: Path
) -> Outline:
    """Follow an evaluation through the cache. Raises like the evaluation if the model or scenarios do not exist."""
    config = select_scenarios(config, scenarios_file, num_episodes)
    address = evaluated_model(config, model)
    checkpoint = stored_checkpoint(address)
    preflight.check_evaluation(config, address, whole=scenarios_file is not None)
    followed = follow(lambda: measure(config, address, whole=scenarios_file is not None))
    split, samples = followed.first(SplitResult), config.evaluation.samples
    unknown = "unknown until split has run"
    return Outline(
        title=f"evaluation {config.name}",
        facts={
            "model": address if checkpoint is None else f"{address}, checkpoint {checkpoint.uri}",
            "scenarios": unknown if split is None else f"{split.heldout} held out",
            "episodes": unknown if split is None else f"{split.heldout * samples:,}, {samples} for each scenario",
            "stages": followed.stages,
            "output": f"{output}, {'replaced' if output.exists() else 'new'}",
        },
    )
