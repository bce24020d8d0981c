"""Config of an evaluation on a file of scenarios, or on a limited number of episodes."""

from __future__ import annotations

from pathlib import Path

from grpo.config.pipeline import PipelineConfig
from grpo.config.scenarios import CsvSource, FileSource
from grpo.errors import ConfigError

_FORMATS = {".jsonl": "jsonl", ".json": "json", ".parquet": "parquet", ".csv": "csv", ".tsv": "csv"}


def select_scenarios(config: PipelineConfig, scenarios_file: str | None, num_episodes: int | None) -> PipelineConfig:
    """The config with the scenarios of this file and at most `num_episodes` held-out episodes.

    Raises `ConfigError` if the file format is unknown, or if there are fewer episodes than `evaluation.samples`.
    """
    scenarios = config.scenarios
    if scenarios_file is not None:
        kind = _FORMATS.get(Path(scenarios_file).suffix)
        if kind is None:
            raise ConfigError(f"scenarios in {scenarios_file}: name a file that ends in {', '.join(_FORMATS)}")
        source = (
            CsvSource(kind="csv", path=scenarios_file) if kind == "csv" else FileSource(kind=kind, path=scenarios_file)
        )
        scenarios = scenarios.model_copy(update={"sources": (source,)})
    if num_episodes is not None:
        samples = config.evaluation.samples
        if num_episodes < samples:
            raise ConfigError(
                f"{num_episodes} episodes are too few, because each scenario has {samples} (evaluation.samples). Ask "
                "for more"
            )
        limits = [num_episodes // samples, *([scenarios.limit] if scenarios.limit is not None else [])]
        scenarios = scenarios.model_copy(update={"limit": min(limits)})
    return config.model_copy(update={"scenarios": scenarios})
