from __future__ import annotations

import pytest
from pydantic import ValidationError

from grpo.config.base import Settings
from grpo.config.rollout import EpisodeSettings
from grpo.config.training import TrainingSettings
from grpo.errors import ConfigError
from grpo.notebook.config import OTHER_NAMES, TrainingConfig, TrainingProfile, get_config_for_task

OWN = {"eval_steps", "save_steps", "logging_steps", "report_to", "wandb_project", "seed"}
"""Settings of the loop itself; the tests of the trainer show their effect."""

CONVERTED: list[tuple[dict[str, object], dict[str, object]]] = [
    ({"num_generations": 4}, {"group_size": 4}),
    ({"num_epochs": 2}, {"epochs": 2}),
    ({"num_outer_iterations": 7}, {"iterations": 7}),
    ({"kl_penalty": 0.1}, {"beta": 0.1}),
    ({"clip_ratio": 0.15}, {"clip_low": 0.15, "clip_high": 0.15}),
    ({"clip_range_left": 3e-4, "clip_range_right": 4e-4}, {"clip_low": 3e-4, "clip_high": 4e-4}),
    ({"entropy_coef": 0.02}, {"entropy_coefficient": 0.02}),
    ({"baseline_type": "group_median"}, {"baseline": "group_median"}),
    ({"advantage_normalization": False}, {"scale_by_std": False}),
    # an iteration has 4 scenarios in groups of 8: 1000 / 32 = 31.25
    ({"num_episodes": 1000}, {"iterations": 32}),
    # 1000 / (4 * 16) = 15.6, so 16; a tenth of two steps in each is 3.2
    (
        {"num_episodes": 1000, "num_generations": 16, "num_epochs": 2, "warmup_ratio": 0.1},
        {"iterations": 16, "group_size": 16, "epochs": 2, "warmup_steps": 4},
    ),
    # 100 / (2 * 4 * 8) = 1.6; two groups of 8 in a forward pass, 512 tokens each
    (
        {"per_device_train_batch_size": 2, "num_episodes": 100},
        {"scenarios": 8, "microbatch_tokens": 8192, "iterations": 2},
    ),
    ({"gradient_accumulation_steps": 3}, {"scenarios": 3}),
    (
        {"max_prompt_length": 100, "per_device_train_batch_size": 1},
        {"max_context": 612, "scenarios": 4, "microbatch_tokens": 4896},
    ),
    ({"max_prompt_length": 100, "max_completion_length": 28}, {"max_context": 128}),
    ({"bf16": True}, {"precision": "bf16", "importance_sampling_cap": 2.0}),
    ({"fp16": True, "importance_sampling_cap": 3.0}, {"precision": "fp16", "importance_sampling_cap": 3.0}),
    ({"bf16": False}, {}),
]


@pytest.mark.parametrize("kind", [TrainingSettings, EpisodeSettings])
def test_settings_are_the_pipelines(kind: type[Settings]):
    """All but two have its default as well: a notebook's list of scenarios and its turns are short."""
    usual, pipeline = TrainingConfig(), kind()
    differing = {name for name, value in pipeline if getattr(usual, name) != value}
    assert differing == {"scenarios", "on_truncation"} & kind.model_fields.keys()


def test_no_other_setting_is_added():
    """A setting of training or rollout has its place there."""
    assert set(TrainingConfig.model_fields) == {*TrainingSettings.model_fields, *EpisodeSettings.model_fields, *OWN}


@pytest.mark.parametrize(("given", "fields"), CONVERTED)
def test_a_name_of_another_framework_sets_the_fields_here(given: dict[str, object], fields: dict[str, object]):
    """In the units here, by hand; nothing else is set."""
    assert TrainingConfig.model_validate(given).model_dump(exclude_unset=True) == fields


def test_every_name_of_another_framework_is_tried():
    """None is left out of the list above."""
    assert {name for given, _ in CONVERTED for name in given} - TrainingConfig.model_fields.keys() == set(OTHER_NAMES)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_generations": 4, "group_size": 4}, "num_generations sets group_size, which another setting sets"),
        (
            {"clip_ratio": 0.2, "clip_high": 0.3},
            "clip_ratio sets clip_low and clip_high, which another setting sets",
        ),
        ({"num_episodes": 64, "num_outer_iterations": 2}, "num_episodes sets iterations, which another"),
        ({"bf16": True, "precision": "bf16"}, "bf16 sets precision"),
        ({"num_episodes": 1}, "num_episodes: Input should be greater than or equal to 2"),
        ({"warmup_ratio": "much"}, "warmup_ratio: Input should be a valid number"),
        ({"num_generations": 1}, "group_size\n.*greater than or equal to 2"),
        ({"bf16": True, "fp16": True}, "exclude each other"),
        ({"processes": 2, "engine": "trl"}, "processes has no effect with engine trl"),
        ({"num_epochs": 2, "algorithm": "reinforce"}, "epochs has no effect with algorithm reinforce"),
    ],
)
def test_a_setting_twice_or_out_of_bounds_is_refused(given: dict[str, object], message: str):
    """With the name that was written, or the one here."""
    with pytest.raises(ValidationError, match=message):
        TrainingConfig.model_validate(given)


def test_a_field_without_effect_on_the_algorithm_is_refused():
    """REINFORCE has no clip."""
    with pytest.raises(ValidationError, match="clip_low has no effect with algorithm reinforce"):
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
    """An explicit field is kept, also under its name elsewhere: half of 8 iterations of 32 episodes is warm-up."""
    assert TrainingConfig.from_profile("balanced", learning_rate=1e-6).learning_rate == 1e-6
    assert TrainingConfig.from_profile("balanced", warmup_ratio=0.5, num_episodes=256).warmup_steps == 4
    assert get_config_for_task("sales", model_name="gpt2", num_generations=4, entropy_coef=0.0).group_size == 4


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
