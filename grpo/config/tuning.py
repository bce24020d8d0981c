"""How settings are searched for: in a notebook, and over runs of the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from grpo.config.base import RunName, Settings
from grpo.config.pipeline import PipelineConfig, load_config
from grpo.config.search_space import SearchSpace, Value, check_space, with_values
from grpo.config.spaces import SpaceName, get_search_space
from grpo.errors import ConfigError

_TUNED = ("training.", "rollout.")
_BUDGET = "training.iterations"


class HPOConfig(Settings):
    """A search: what is tried, how often, and when a trial is given up."""

    search_space: SpaceName | SearchSpace = "grpo"
    """A named space, or dimensions by field: `{learning_rate: {type: loguniform, low: 1e-6, high: 1e-3}}`."""
    n_trials: int = Field(default=20, ge=1)
    """Trials that come to an end: complete, pruned, or failed of themselves. One whose process died is tried again."""
    optimization_direction: Literal["maximize", "minimize"] = "maximize"
    """Of the reward on scenarios that are held out from training."""
    pruning: bool = True
    """Give a trial up at a look when it does badly beside those before it."""
    pruner: Literal["median", "successive_halving"] = "median"
    """What badly means: worse than the median of the others at that look, or not in their better half."""
    intermediate_evals: int = Field(default=4, ge=1)
    """Times that a trial is judged on held-out scenarios, after equal shares of its training; the last one counts."""
    seed: int = Field(default=0, ge=0)
    """What is drawn from the space follows from it, as long as one trial runs at a time."""

    @model_validator(mode="after")
    def _settings_are_read(self) -> Self:
        if not self.pruning and self.pruner != "median":
            raise ValueError(f"pruner {self.pruner} is not read without pruning; leave it out")
        return self


def _loaded(base: Any) -> Any:
    return load_config(Path(base)) if isinstance(base, str) else base


class TuneConfig(HPOConfig):
    """A search over runs of the pipeline, each from the same base policy."""

    name: RunName
    """Name of the study and of its report's folder."""
    base: Annotated[PipelineConfig, BeforeValidator(_loaded)]
    """The run whose settings are tuned; a text is the path of its YAML file."""
    metric: Literal["reward", "success"] = "reward"
    """What is compared on the validation scenarios: the reward, or the outcome that the environment verifies."""
    validation_fraction: float = Field(default=0.25, gt=0, lt=1)
    """Share of the training scenarios that trials are judged on, and not trained on. The scenarios that the gates judge
    by are played by no trial: what is chosen on them would look better on them than it is."""
    iterations: int | None = Field(default=None, ge=1)
    """Length of a trial, in iterations of the base config; by default as many as it has. A trial that plays more
    episodes in an iteration has fewer of them."""
    parallel: int = Field(default=1, ge=1)
    """Trials that run at once, each in a process with a model of its own."""
    storage: str | None = None
    """Where the study is kept: `sqlite:///PATH`, or `postgresql://user@host/database` whose password is in PGPASSWORD.
    By default a SQLite file in the home of the runs."""
    heartbeat_s: int = Field(default=10, ge=1)
    """Seconds between signs of life of a trial; after six that did not come it is taken for dead, and tried again."""

    @property
    def space(self) -> SearchSpace:
        """The dimensions, as paths into the base config."""
        if isinstance(self.search_space, str):
            return get_search_space(self.search_space, naming="pipeline")
        return self.search_space

    def trial(self, values: dict[str, Value]) -> PipelineConfig:
        """The run that a trial with these values is."""
        return self._with(values, self.iterations or self.base.training.iterations)

    def best(self, values: dict[str, Value]) -> PipelineConfig:
        """The base config with these values, as long as the base run is."""
        tuned = self._with(values, self.base.training.iterations)
        return tuned.model_copy(update={"name": f"{self.base.name}-tuned"})

    def _with(self, values: dict[str, Value], iterations: int) -> PipelineConfig:
        """As many episodes as the base config plays in so many iterations, or one iteration at least."""
        config = with_values(self.base, values)
        episodes = iterations * self.base.rollout.scenarios * self.base.rollout.group_size
        count = max(1, round(episodes / (config.rollout.scenarios * config.rollout.group_size)))
        return with_values(config, {_BUDGET: count})

    @model_validator(mode="after")
    def _space_fits(self) -> Self:
        for path in self.space:
            if not path.startswith(_TUNED) or path == _BUDGET:
                raise ConfigError(
                    f"dimension {path} would make trials that cannot be compared: data, reward, start and length are "
                    "the same for all; tune fields of training and rollout"
                )
        check_space(self.space, self.base)
        return self

    @model_validator(mode="after")
    def _storage_is_shared_and_tells_no_secret(self) -> Self:
        if self.storage is None:
            return self
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError

        try:
            url = make_url(self.storage)
        except ArgumentError:
            raise ConfigError("storage is no URL; write sqlite:///PATH or postgresql://user@host/database") from None
        if url.password is not None or "password" in url.query:
            raise ConfigError(
                f"storage {url.render_as_string(hide_password=True).split('?')[0]} holds a password; leave it out, and "
                "put it into the environment as PGPASSWORD"
            )
        if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
            raise ConfigError(f"storage {self.storage} is gone with its process; write sqlite:///PATH")
        return self
