"""Plan of a pretraining: its files, and the demonstrations that it learns from."""

from __future__ import annotations

from pathlib import Path

from grpo.config.pretrain import PretrainConfig
from grpo.errors import ConfigError
from grpo_flows.plans.outline import Outline


def plan_pretraining(config: PretrainConfig) -> Outline:
    """Name the files that would be written. Raises `ConfigError` if the phrasebook is missing."""
    for name in ("scenario_phrasebook", "demonstration_phrasebook"):
        if not Path(path := getattr(config, name)).is_file():
            raise ConfigError(f"{name} {path} is missing. Call this in the project's folder")

    def written(path: str, content: str) -> str:
        return f"{path}, {'replaced' if Path(path).exists() else 'new'}: {content}"

    model = (
        f"{config.num_hidden_layers} layers of width {config.hidden_size}, {sum(config.cycle_steps):,} steps of "
        f"{config.batch_size} out of {config.demonstrations:,} demonstrations"
    )
    return Outline(
        title="pretraining",
        facts={
            "scenarios": written(config.scenarios_path, f"{config.scenarios} scenarios"),
            "demonstrations": written(config.demonstrations_path, f"{config.written_demonstrations} conversations"),
            "model": written(config.model_path, model),
        },
    )
