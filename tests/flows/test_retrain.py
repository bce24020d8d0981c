from __future__ import annotations

from grpo.config.pipeline import PipelineConfig
from grpo_flows.retrain import retraining_config


def test_a_retraining_keeps_the_tags_that_the_pipeline_gives_its_versions(desk_config: dict[str, object]):
    """The owner's tag stays beside the tag of the training data."""
    pipeline = PipelineConfig.model_validate(
        {**desk_config, "registry": {"model_name": "desk", "tags": {"team": "desk"}}}
    )
    run = retraining_config(pipeline, name="again", scenarios="mix.parquet", model=None, tags={"conversations": "5a"})
    assert run.registry.tags == {"team": "desk", "conversations": "5a"}
    assert run.policy == pipeline.policy
