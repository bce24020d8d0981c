"""Look-ups that load the models to serve: versions from the registry, or a model at any other address."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from mlflow.exceptions import MlflowException

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.errors import AddressError, GRPOError
from grpo.policy.catalog import is_weights, load_files, open_policy
from grpo.policy.policy import Policy
from grpo.policy.weights.promotion_records import CHAMPION, PromotionState, remember
from grpo.policy.weights.registered import ModelVersion, address_parts, promoted_champion
from grpo.policy.weights.sources import model_files
from grpo.registry import Registry
from grpo.registry.served_agent import served_agent
from grpo.serving.engine.engine import ProcessPolicy
from grpo.serving.engine.served_model import ServedModel

logger = logging.getLogger(__name__)
_WAIT_S = 1.0
"""Longest time that a look-up waits while another process writes."""


class WatchedVersion:
    """Look-up of the version at an address such as `models:/support-desk@champion`. Loads it if it is a new one.

    The champion is the version that was promoted last. If the alias names another version, `moved` has a sentence about
    it, and each change is also logged once and written into the description of the model. With `follow_alias` the
    version of the alias is served instead.
    """

    def __init__(self, models: Registry, address: str, *, follow_alias: bool = False) -> None:
        self.moved: str | None = None
        self._seen: str | None = None
        self._failures = set[str]()
        self._models = models
        self._address = address
        self._follow_alias = follow_alias
        parts = address_parts(address)
        self._champion_of: str | None = parts["name"] if parts["alias"] == CHAMPION else None

    def __call__(self, current: str) -> ServedModel | None:
        """Load the version at the address. None if it is `current`, the version that answers."""
        self._seen = None
        version = self._version()
        self._seen = version.address
        name = f"{version.name}/{version.version}"
        if name == current:
            return None
        return self._served(version)

    def is_changed(self) -> bool:
        """See `WatchesAlias`."""
        try:
            return self._version().address != self._seen
        except (GRPOError, MlflowException, OSError):
            return False

    def load_version(self, version: str) -> ServedModel:
        """See `LoadsVersions`. Another server has loaded the version, and its conversations may go on here as well."""
        name, _, number = version.rpartition("/")
        if name != address_parts(self._address)["name"]:
            raise AddressError(f"{version} is not a version of the model at {self._address}")
        return self._served(self._models.resolve(f"models:/{name}/{number}"))

    def _served(self, version: ModelVersion) -> ServedModel:
        served = served_agent(self._models, version)
        registration = self._models.client.get_model_version(version.name, str(version.version))
        policy = ProcessPolicy(partial(load_files, served.files))
        agent = served.with_policy(policy)
        own = {tool.name for tool in agent.tools}
        return ServedModel(
            model=version.name,
            version=f"{version.name}/{version.version}",
            policy=policy,
            agent=agent,
            renderer=served.renderer,
            system_prompt=served.system_prompt,
            tools=tuple(tool for tool in served.tools if tool.name not in own),
            temperature=agent.config.temperature,
            max_new_tokens=agent.config.max_new_tokens,
            max_context=agent.config.max_context,
            registered=registration.creation_timestamp / 1000,
        )

    def _version(self) -> ModelVersion:
        """Version at the address. Raises as `Registry.resolve`."""
        models = self._models
        if self._champion_of is not None:
            state = models.promotions(self._champion_of).state()
            self._tell(state)
            if state.champion is not None and not self._follow_alias:
                number = state.history[-1].number
                self._write(
                    "the last promotion was not remembered",
                    lambda: remember(models.tracking_uri, state.model, state.created, number, wait_s=_WAIT_S),
                )
                if (champion := promoted_champion(models.client, state)) is not None:
                    return champion
        return models.resolve(self._address, follow_alias=self._follow_alias)

    def _tell(self, state: PromotionState) -> None:
        """Log and describe an alias that was moved by hand, or put back, since the last look."""
        if state.moved == self.moved:
            return
        self.moved = state.moved
        if state.moved is None:
            logger.info("the alias champion of %s names the version that was promoted", state.model)
        else:
            logger.warning("%s", state.moved)
        self._write(
            f"the description of {state.model} was not written",
            lambda: self._models.describe(state.model, wait_s=_WAIT_S),
        )

    def _write(self, failure: str, write: Callable[[], None]) -> None:
        """Call `write`. A failure is only logged, once, so that a server without write access goes on."""
        try:
            write()
        except (GRPOError, MlflowException, OSError) as error:
            if failure not in self._failures:
                self._failures.add(failure)
                logger.warning("%s: %s", failure, error)


def fixed_model(address: str, name: str) -> Callable[[str], ServedModel | None]:
    """Look-up that loads the model at any other address once, with an agent that adds nothing to conversations."""

    def next_version(current: str) -> ServedModel | None:
        if current:
            return None
        policy: Policy
        if is_weights(address):
            policy = ProcessPolicy(partial(load_files, model_files(address)))
        else:
            policy = open_policy(address)
        if getattr(policy, "tokenizer", None) is None:
            raise AddressError(f"{address} has no tokenizer. Serve a model folder, org/name, file.gguf or models:/name")
        agent = MultiTurnAgent(AgentConfig(model_name=address), policy=policy)
        return ServedModel(model=name, version=name, policy=policy, agent=agent)

    return next_version
