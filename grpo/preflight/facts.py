"""Facts that the checks look at: scenarios, environment, tokenizer and played episodes of a config, each made once.

If a fact cannot be made, every check that needs it raises the same error, which counts as one fault.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from grpo.agents.catalog import make_agent
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.pipeline import PipelineConfig
from grpo.config.scenarios import HubDataSource
from grpo.environments.catalog import find_unplayable, make_environment_without_model, verifies
from grpo.environments.environment import Environment
from grpo.errors import DataError
from grpo.identity.cache_identity import pin_models
from grpo.policy.weights.sources import ModelPlan, model_description, model_plan
from grpo.preflight.quiet import errors_only
from grpo.registry import Registry
from grpo.scenario import Scenario
from grpo.scenarios.first_records import first_records
from grpo.scenarios.ingest import ingest
from grpo.scenarios.sources import pin_sources
from grpo.scenarios.split import Split, split
from grpo.scenarios.table import read_scenarios

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from grpo.learner.estimates.model_sizes import ModelSizes
    from grpo.renderers.chat_template import Renderer
    from grpo.trajectories import Trajectory

MOST_RECORDS = 1_000
"""Records of each source that are read. If a source has more, or records that take too much memory together, only the
first ones are checked."""
_MOST_CHARACTERS = 64 * 2**20
"""Characters of the scenarios that are kept."""
_PLAYED = 3
"""Scenarios that are played with scripted replies."""
T = TypeVar("T")


class Sample(NamedTuple):
    """Scenarios of a config, in the order of their sources."""

    scenarios: tuple[Scenario, ...]
    table: Path | None
    """Table of all scenarios. None if the sources have more than the sample."""


def _once(make: Callable[[Facts], T]) -> Callable[[Facts], T]:
    """Make a fact once. If that raises, every later call raises the same error again."""
    name = make.__name__

    @wraps(make)
    def fact(self: Facts) -> T:
        if name not in self._made:
            try:
                self._made[name] = (make(self), None)
            except Exception as error:  # noqa: BLE001 - whatever it is, the checks that need the fact end with it
                self._made[name] = (None, error)
        value, failure = self._made[name]
        if failure is not None:
            raise failure
        return value

    return fact


class Facts:
    """Facts about one config, held while its checks run."""

    def __init__(
        self, config: PipelineConfig, *, whole: bool = False, registry: Callable[[], Registry | None] = lambda: None
    ) -> None:
        self.given = config
        self.whole = whole
        """True if every scenario is held out, as in an evaluation on a file."""
        self.registry = registry
        """Opens the registry, or returns None if it is a file of this machine that no run has made yet."""
        self._made: dict[str, tuple[Any, Exception | None]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="grpo-preflight-", ignore_cleanup_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    @_once
    def config(self) -> PipelineConfig:
        """The config with its models and data sets pinned."""
        return pin_models(self.given)

    @_once
    def model(self) -> ModelPlan:
        """Address and size of the model."""
        return model_plan(self.config().policy.model)

    @_once
    def environment(self) -> Environment:
        """The environment. If a model would write the user's messages, a user who follows rules replaces it."""
        return make_environment_without_model(self.given.environment)

    @_once
    def agent(self) -> MultiTurnAgent:
        """The agent, without a policy."""
        return make_agent(self.given.agent)

    @_once
    def sample(self) -> Sample | None:
        """Scenarios of the sources. None if one is a data set on a hub, because it would have to be fetched first.

        None as well if the connection to a source fails now, because the stage that reads it tries again.
        """
        sources = pin_sources(self.given.scenarios).sources
        if any(isinstance(source, HubDataSource) for source in sources):
            return None
        table = Path(self._folder.name) / "scenarios.parquet"
        try:
            counts = ingest(
                sources,
                table,
                table.with_name("quarantine.parquet"),
                max_quarantined_fraction=self.given.scenarios.max_quarantined_fraction,
                most=MOST_RECORDS,
            )
        except (ConnectionError, TimeoutError):
            return None
        read, most = read_scenarios(table), MOST_RECORDS * len(sources)
        scenarios = tuple(first_records(read, most, most_characters=_MOST_CHARACTERS, size=_size))
        complete = len(scenarios) == counts.scenarios and all(s.records < MOST_RECORDS for s in counts.sources)
        return Sample(scenarios, table if complete else None)

    @_once
    def unplayable(self) -> dict[str, str]:
        """Reasons why scenarios of the sample cannot be played, by id. Raises `BudgetError` if they are too many."""
        sample, bound = self.sample(), self.given.scenarios.max_quarantined_fraction
        if sample is None:
            return {}
        return find_unplayable(
            self.given.environment,
            sample.scenarios,
            max_fraction=bound if sample.table is not None else 1.0,
            environment=self.environment(),
        )

    @_once
    def split(self) -> Split | None:
        """Training and held-out scenarios. None if the sample is not all of them."""
        sample, settings = self.sample(), self.given.scenarios
        if sample is None or sample.table is None:
            return None
        fraction = 1.0 if self.whole else settings.validation_fraction
        try:
            return split(sample.table, validation_fraction=fraction, limit=settings.limit, excluded=self.unplayable())
        except DataError as error:  # its table is a temporary one
            raise DataError(str(error).replace(str(sample.table), "scenarios.sources")) from error

    @_once
    def heldout(self) -> tuple[Scenario, ...]:
        """Held-out scenarios, or all playable scenarios of the sample if the split is not known."""
        sample, parts = self.sample(), self.split()
        if sample is None:
            return ()
        if parts is None:
            return tuple(scenario for scenario in sample.scenarios if scenario.id not in self.unplayable())
        chosen = set(parts.heldout)
        return tuple(scenario for scenario in sample.scenarios if scenario.id in chosen)

    @_once
    def playable(self) -> tuple[Scenario, ...]:
        """Scenarios that a run plays: both splits, or if the split is not known the playable ones of the sample."""
        sample, parts = self.sample(), self.split()
        if sample is None:
            return ()
        left_out = self.unplayable()
        chosen = None if parts is None else {*parts.train, *parts.heldout}
        return tuple(
            scenario
            for scenario in sample.scenarios
            if scenario.id not in left_out and (chosen is None or scenario.id in chosen)
        )

    def can_verify(self, scenario: Scenario) -> bool:
        """True if an episode of this scenario may end with a success or a failure.

        If an environment of the user's own verifies by itself, this is True, because only its episodes would show more.
        """
        return verifies(self.environment(), scenario, judged=self.given.judge is not None)

    @_once
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer with its chat template."""
        from grpo.policy.tokenizer import load_tokenizer

        with model_description(self.model().address) as described:
            return load_tokenizer(described.tokenizer, chat_template=self.given.policy.chat_template)

    @_once
    def renderer(self) -> Renderer:
        """Renderer with the tools of environment and agent."""
        from grpo.policy.renderer import make_renderer

        tools = (*self.environment().tools, *self.agent().tools)
        return make_renderer(self.tokenizer(), tools=tools, settings=self.given.policy.renderer)

    @_once
    def empty_model(self) -> PreTrainedModel:
        """The model without its weights, with the adapters that are trained."""
        from grpo.learner.estimates.empty_model import empty_model
        from grpo.policy.model_files import check_architecture

        with model_description(self.model().address) as described:
            check_architecture(described.config)
            return empty_model(described.config, self.given.training)

    @_once
    def sizes(self) -> ModelSizes:
        """Numbers of weights of the model, with the adapters that are trained."""
        from grpo.learner.estimates.model_sizes import model_sizes

        with model_description(self.model().address) as described:
            return model_sizes(described.config, self.given.training, self.empty_model)

    @_once
    def teacher_sizes(self) -> ModelSizes | None:
        """Numbers of weights of a distillation's teacher. None if there is none, or if it is the policy itself."""
        from grpo.learner.estimates.model_sizes import model_sizes

        address = self.config().training.teacher
        if address is None:
            return None
        frozen = self.given.training.model_copy(update={"lora": None, "gradient_checkpointing": False})
        with model_description(model_plan(address).address) as described:

            def build() -> PreTrainedModel:
                from grpo.learner.estimates.empty_model import (
                    empty_model,  # imports torch, which a plain model does not need
                )

                return empty_model(described.config, frozen)

            return model_sizes(described.config, frozen, build)

    @_once
    def model_context(self) -> int:
        """Tokens that the model reads."""
        from grpo.policy.context import context_limit

        return context_limit(self.sizes().config)

    def max_context(self) -> int:
        """Tokens that an episode may have: `rollout.max_context`, or the model's limit if it is lower."""
        return min(self.given.rollout.max_context, self.model_context())

    @_once
    def episodes(self) -> tuple[Trajectory, ...]:
        """Episodes of a few scenarios, the longest among them, in which a script replies instead of the model.

        They find faults that only an episode shows: a prompt that does not fit, an environment or a reward that raises.
        """
        from grpo.policy.scripted import ScriptedPolicy
        from grpo.rollout.collect import collect

        scenarios = self.playable()
        if not scenarios:
            return ()
        longest = max(scenarios, key=_size)
        others = [scenario for scenario in scenarios[:_PLAYED] if scenario.id != longest.id]
        policy = ScriptedPolicy(["OK."])
        policy.max_context = self.max_context()
        settings = self.given.rollout.model_copy(
            update={"error_budget": 1.0, "turn_timeout_s": 2.0, "step_timeout_s": 2.0, "episode_timeout_s": 3.0}
        )
        with errors_only():
            return tuple(
                collect(
                    [longest, *others][:_PLAYED],
                    policy,
                    self.environment(),
                    self.renderer(),
                    settings,
                    group_size=1,
                    temperature=1.0,
                    run_seed=self.given.seed,
                    iteration="preflight",
                    agent=self.agent(),
                )
            )


def _size(scenario: Scenario) -> int:
    return len(scenario.model_dump_json())
