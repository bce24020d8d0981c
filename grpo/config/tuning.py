"""Settings of a hyperparameter search: in a notebook, and over runs of the pipeline."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from grpo.config.base import AppliesWhen, RunName, Settings, from_config_folder
from grpo.config.pipeline import PipelineConfig, load_config
from grpo.config.rollout import equal_episodes
from grpo.config.search_space import SearchSpace, SpaceName, Value, check_space, get_search_space, with_values
from grpo.errors import ConfigError

_TUNED = ("training.", "rollout.")
_BUDGET = "training.iterations"


class HPOConfig(Settings):
    """Search: space, number of trials and pruning."""

    search_space: SpaceName | SearchSpace = "grpo"
    """Named space, or dimensions by field: `{learning_rate: {type: loguniform, low: 1e-6, high: 1e-3}}`."""
    n_trials: int = Field(default=20, ge=1)
    """Trials that finish: complete, pruned or failed. If the process of a trial crashes, the trial is retried."""
    optimization_direction: Literal["maximize", "minimize"] = "maximize"
    """Direction of the objective, the reward on scenarios held out from training."""
    pruning: bool = True
    """Stop a trial at an intermediate evaluation that is bad in comparison with earlier trials."""
    pruner: Annotated[Literal["median", "successive_halving"], AppliesWhen("pruning")] = "median"
    """Prune below the median of the others at that evaluation, or outside of their better half."""
    intermediate_evals: int = Field(default=4, ge=1)
    """Evaluations of a trial on held-out scenarios, after equal shares of its training. The last is its result."""
    seed: int = Field(default=0, ge=0)
    """Seed of the sampled values, reproducible as long as one trial runs at a time."""


def _loaded(base: Any, info: ValidationInfo) -> Any:
    return load_config(from_config_folder(base, info)) if isinstance(base, str) else base


class TuneConfig(HPOConfig):
    """Search over runs of the pipeline, each from the same base policy."""

    name: RunName
    """Name of the study and of its report's folder."""
    base: Annotated[PipelineConfig, BeforeValidator(_loaded)]
    """Config to tune, or the path of its YAML file."""
    metric: Literal["reward", "success"] = "reward"
    """Objective on the validation scenarios: the reward, or the outcome that the environment verifies."""
    validation_fraction: float = Field(default=0.25, gt=0, lt=1)
    """Share of the training scenarios that trials are evaluated on instead of trained on. No trial uses the held-out
    scenarios of the gates, because selection on them would bias their estimate upwards."""
    iterations: int | None = Field(default=None, ge=1)
    """Length of a trial in iterations of the base config, by default all of them. If a trial has more episodes per
    iteration, it has fewer iterations."""
    parallel: int = Field(default=1, ge=1)
    """Trials at once, each in a process with its own model."""
    storage: str | None = None
    """Database of the study: `sqlite:///PATH`, or `postgresql://user@host/database` with the password in PGPASSWORD.
    By default a SQLite file in the home of the runs."""
    heartbeat_s: int = Field(default=10, ge=1)
    """Seconds between heartbeats of a trial. After six missed heartbeats it counts as crashed and is retried."""

    @property
    def space(self) -> SearchSpace:
        """Dimensions, as paths in the base config."""
        if isinstance(self.search_space, str):
            return get_search_space(self.search_space, naming="pipeline")
        return self.search_space

    def trial(self, values: dict[str, Value]) -> PipelineConfig:
        """Config of the trial with these values."""
        return self._with(values, self.iterations or self.base.training.iterations)

    def best(self, values: dict[str, Value]) -> PipelineConfig:
        """Base config with these values, at its full length."""
        tuned = self._with(values, self.base.training.iterations)
        return tuned.model_copy(update={"name": f"{self.base.name}-tuned"})

    def _with(self, values: dict[str, Value], iterations: int) -> PipelineConfig:
        """Config with as many episodes as the base config has in `iterations`, but at least one iteration."""
        config = with_values(self.base, values)
        return with_values(config, {_BUDGET: equal_episodes(iterations, self.base.rollout, config.rollout)})

    @model_validator(mode="after")
    def _space_fits(self) -> Self:
        for path in self.space:
            if not path.startswith(_TUNED) or path == _BUDGET:
                raise ConfigError(
                    f"dimension {path} cannot be tuned, because trials can be compared only if data, reward, base "
                    "policy and length are the same for all. Tune fields of training and rollout"
                )
        check_space(self.space, self.base)
        return self

    @model_validator(mode="after")
    def _storage_is_persistent_and_without_password(self) -> Self:
        if self.storage is None:
            return self
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError

        try:
            url = make_url(self.storage)
        except ArgumentError:
            raise ConfigError("storage is not a URL. Write sqlite:///PATH or postgresql://user@host/database") from None
        if url.password is not None or "password" in url.query:
            raise ConfigError(
                f"storage {url.render_as_string(hide_password=True).split('?')[0]} holds a password. Leave it out, and "
                "put it into the environment as PGPASSWORD"
            )
        if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
            raise ConfigError(f"storage {self.storage} is in memory, so the study would be lost. Write sqlite:///PATH")
        return self
