"""Make a registered version again from what is written down of it, and compare the weights."""

from __future__ import annotations

import tempfile
import time

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import BaseModel, ConfigDict

from flows.ledger import Ledger
from flows.models import folder_digest
from flows.run import Run
from flows.runner import shard_runner
from grpo.config.pipeline import PipelineConfig
from grpo.errors import ReproductionError
from grpo.policy.catalog import model_folder
from grpo.registry import Provenance
from grpo.scenarios.sources import content_hash
from grpo.storage.home import home
from tasks.provenance import provenance
from tasks.registry import registry


class Reproduction(BaseModel):
    """Policies then and now, and what else is not as it was."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    model: str
    expected: tuple[str, ...]
    """Hashes of the base and of the policy after each iteration, as they were registered."""
    found: tuple[str, ...]
    differences: dict[str, tuple[str, str]]
    """(then, now) of what the weights hang on, what should be looked at first coming first."""

    @property
    def equal(self) -> bool:
        """Whether all policies are bit for bit the same."""
        return self.expected == self.found

    @property
    def first_iteration(self) -> int | None:
        """The first iteration whose weights differ, from 1; 0 is the base."""
        pairs = zip(self.expected, self.found, strict=False)
        return next((index for index, (then, now) in enumerate(pairs) if then != now), None)


@flow(name="reproduce", task_runner=ThreadPoolTaskRunner(max_workers=1))
def reproduce(model: str) -> Reproduction:
    """Train the version at `models:/NAME@alias` or `models:/NAME/3` again, from nothing and beside everything.

    No cached result is taken, none is left, and nothing is registered. Raises `ReproductionError` before anything is
    computed when the sources or the base model are not what they were.
    """
    models = registry()
    then = models.provenance(models.resolve(model))
    home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="reproduce-", dir=home()) as scratch:
        config = PipelineConfig.model_validate({**then.config, "store": f"{scratch}/store"})
        _unchanged("scenarios.sources", then.sources, content_hash(config.scenarios.sources))
        _unchanged("policy.model", then.model, folder_digest(model_folder(config.policy.model)))
        now = retrain_aside(config)
    return Reproduction(model=model, expected=then.policies, found=now.policies, differences=then.differences(now))


@flow(name="reproduce-training", persist_result=False, task_runner=ThreadPoolTaskRunner(max_workers=1))
def retrain_aside(config: PipelineConfig) -> Provenance:
    """Train a config, and describe what came out."""
    with shard_runner(config.rollout) as runner:
        run = Run(config, Ledger(runner), started_at=time.time())
        run.prepare()
        run.improve()
    return provenance(
        config,
        sources=run.content,
        scenarios=run.data.scenarios.sha256,
        model=run.model_content,
        external_digests=run.all_external_digests(),
        policies=run.policies,
    )


def _unchanged(setting: str, then: str, now: str) -> None:
    if then != now:
        raise ReproductionError(
            f"what {setting} names has changed: its digest was {then[:16]}, now it is {now[:16]}; bring the files of "
            "that time back"
        )
