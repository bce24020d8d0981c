from __future__ import annotations

import pytest
from pydantic import ValidationError

from grpo.config.training import LoraSettings
from grpo.errors import ConfigError
from grpo.notebook.config import TrainingConfig, TrainingProfile, get_config_for_task

CHANGES: dict[str, object] = {
    "num_episodes": 320,
    "num_epochs": 2,
    "num_generations": 4,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "algorithm": "rloo",
    "engine": "trl",
    "learning_rate": 3e-5,
    "adam_beta1": 0.8,
    "adam_beta2": 0.95,
    "max_grad_norm": 0.3,
    "warmup_ratio": 0.5,
    "lr_scheduler_type": "linear",
    "beta": 0.1,
    "clip_low": 0.15,
    "clip_high": 0.25,
    "baseline_type": "group_median",
    "advantage_normalization": False,
    "entropy_coef": 0.02,
    "reward_clip": 10.0,
    "max_prompt_length": 100,
    "max_completion_length": 100,
    "max_new_tokens": 33,
    "temperature": 0.9,
    "concurrency": 3,
    "lora": LoraSettings(r=4),
    "bf16": True,
    "fp16": True,
    "gradient_checkpointing": True,
}
ELSEWHERE = {"eval_steps", "save_steps", "logging_steps", "report_to", "wandb_project", "seed"}
"""Read by the trainer itself, whose tests show it."""


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_changes_the_settings_of_a_stage(name: str):
    """A field that reached neither learner nor rollout would have no effect."""
    usual, changed = TrainingConfig(), TrainingConfig(**{name: CHANGES[name]})
    assert (usual.training_settings(), usual.rollout_settings()) != (
        changed.training_settings(),
        changed.rollout_settings(),
    )


def test_no_field_is_left_out_of_that_test():
    """A new field must be put into one of the two lists."""
    assert set(TrainingConfig.model_fields) == {*CHANGES, *ELSEWHERE}


def test_episodes_become_iterations_of_whole_groups():
    """1000 episodes, 4 groups of 16: 15.6 iterations, so 16; a tenth of the 16 steps is warm-up: 1.6, so 2."""
    config = TrainingConfig(num_episodes=1000, num_generations=16, warmup_ratio=0.1)
    assert (config.groups, config.iterations, config.training_settings().warmup_steps) == (4, 16, 2)
    assert (config.rollout_settings().scenarios, config.rollout_settings().group_size) == (4, 16)


def test_half_precision_sets_an_importance_sampling_cap():
    """The learner refuses bf16 without one."""
    training = TrainingConfig(bf16=True).training_settings()
    assert (training.precision, training.importance_sampling_cap) == ("bf16", 2.0)


def test_two_half_precisions_are_refused():
    """bf16 and fp16 exclude each other."""
    with pytest.raises(ValidationError, match="exclude each other"):
        TrainingConfig(bf16=True, fp16=True)


def test_a_field_without_effect_on_the_algorithm_is_refused():
    """REINFORCE has no clip."""
    with pytest.raises(ValidationError, match="clip_low is not read with algorithm reinforce"):
        TrainingConfig(algorithm="reinforce", clip_low=0.1)


def test_a_misspelt_field_is_named():
    """No silent default."""
    with pytest.raises(ValidationError, match="learning_rat"):
        TrainingConfig(learning_rat=1e-4)


def test_profiles_differ_in_learning_rate():
    """Four of them; the learning rate rises from the first to the third."""
    rates = [TrainingConfig.from_profile(profile).learning_rate for profile in TrainingProfile]
    assert len(rates) == 4
    assert rates[0] < rates[1] < rates[2]
    assert TrainingConfig.from_profile("conservative").beta > 0


def test_overrides_take_precedence_over_the_profile():
    """An explicit field is kept."""
    assert TrainingConfig.from_profile("balanced", learning_rate=1e-6).learning_rate == 1e-6


@pytest.mark.parametrize(
    ("ask", "message"),
    [(lambda: TrainingConfig.from_profile("bold"), "bold"), (lambda: get_config_for_task("x", model_name="m"), "'x'")],
)
def test_an_unknown_name_is_refused_with_the_known_names(ask, message: str):
    """Profiles and tasks."""
    with pytest.raises(ConfigError, match=message):
        ask()


def test_each_task_differs_from_the_balanced_profile():
    """Each has overrides of its own."""
    usual = TrainingConfig.from_profile("balanced")
    config = [
        get_config_for_task(task, model_name="gpt2") for task in ("customer_service", "technical_support", "sales")
    ]
    assert all(config != usual for config in config)
    assert len({config.model_dump_json() for config in config}) == 3


@pytest.mark.parametrize(("name", "adapters"), [("gpt2", False), ("Qwen3-0.6B", False), ("llama-7b", True)])
def test_a_large_model_is_trained_by_adapters(name: str, adapters: bool):
    """From a billion parameters on, by its name."""
    assert (get_config_for_task("sales", model_name=name).lora is not None) is adapters
