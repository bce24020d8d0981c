"""Cache identity of a stage, and identity of a run: inputs, our code, and the user's code and files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from grpo.artifacts import Artifact
from grpo.config.base import without_paths
from grpo.config.dpo import ServedPairs
from grpo.config.pipeline import PipelineConfig, PolicySettings
from grpo.config.sft import ServedDemonstrations
from grpo.identity.code import code_digest, content_names, external_digests
from grpo.policy.catalog import check_trainable, pinned
from grpo.policy.weights.sources import model_identity
from grpo.reads.names import ABSENT, shown
from grpo.scenarios.readers.served import served_snapshot
from grpo.scenarios.sources import content_hash, pin_sources


def identity(value: Any) -> Any:
    """The part of a stage's input that its result depends on.

    An artifact counts with its digest. The path of a file does not count.
    """
    if isinstance(value, Artifact):
        return value.sha256
    if isinstance(value, BaseModel):
        return {name: identity(item) for name, item in without_paths(value).items()}
    if isinstance(value, (list, tuple)):
        return [identity(item) for item in value]
    if isinstance(value, dict):
        return {str(name): identity(item) for name, item in value.items()}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"{type(value).__name__} cannot be part of a cache identity. Pass numbers, texts or artifacts")


def stage_key(name: str, inputs: Mapping[str, Any]) -> str:
    """Cache identity: the stage, its inputs except `store`, our code, and the user's code and files."""
    relevant = {key: identity(value) for key, value in inputs.items() if key != "store"}
    contents = _contents(external_digests(inputs.values()), content_names(inputs.values()))
    text = json.dumps([name, code_digest(), relevant, contents], sort_keys=True)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()}"


_PLACEMENT = ("compute", "store", "save_total_limit", "import_from")


class RunInputs(BaseModel):
    """Digests of everything that the policy of a run is made from, except its settings and our own code."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sources: str
    """Content hash of the scenario sources."""
    model: str
    """Identity of the base model."""
    user_code: dict[str, str]
    """Digests of the user's modules, distributions and declared files."""
    reads: dict[str, str] = {}
    """Digests of the files, folders and variables that the user's code has read, by their names in a lineage."""

    @classmethod
    def of(cls, config: PipelineConfig) -> RunInputs:
        """Digests of what the config names. Raises `DataError`, `PolicyError` or `ConfigError` if some is missing."""
        return cls(
            sources=content_hash(config.scenarios.sources),
            model=model_digest(config.policy),
            user_code=external_digests([config]) | _teacher_digest(config),
        )

    def after(self, reads: Mapping[str, str | None]) -> RunInputs:
        """The same inputs, with what the user's code has read so far."""
        return self.model_copy(update={"reads": {shown(name): digest or ABSENT for name, digest in reads.items()}})

    @property
    def external_digests(self) -> dict[str, str]:
        """Digests of the user's code, of declared files and of what the code has read, by name."""
        return self.user_code | self.reads

    def key(self, config: PipelineConfig) -> str:
        """Identity of the run: config, data, code, and what the user's code has read."""
        named = _contents(self.user_code, content_names([config]))
        contents = [self.sources, self.model, named, _contents(self.reads)]
        return short_digest([run_settings(config), code_digest(), *contents])


def _contents(digests: Mapping[str, str], named: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Pairs of kind and digest without paths, so that the key stays the same if a file is moved.

    Contents that settings name are in the order of the settings, and the rest is in the order of the paths. Because of
    the order, the key changes if two files exchange their content, or if two settings exchange their files.
    """
    kinds = ("file", "log", "model", "exists", "stat")
    rest = sorted(digests.keys() - {*named})
    split = ((name.partition(" ")[0], name) for name in (*named, *rest))
    return [(kind if kind in kinds else name, digests[name]) for kind, name in split]


def run_settings(config: PipelineConfig) -> dict[str, Any]:
    """Settings that the result of a run depends on: all except placement, storage and paths of files."""
    return {name: identity(item) for name, item in without_paths(config).items() if name not in _PLACEMENT}


def short_digest(value: object) -> str:
    """First 16 digits of the sha256 of a value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def model_digest(policy: PolicySettings) -> str:
    """Digest of a model, by commit, version or content. Raises `PolicyError` if the model does not exist."""
    check_trainable(policy.model)
    return model_identity(policy.model)[:16]


def _teacher_digest(config: PipelineConfig) -> dict[str, str]:
    """Digest of the teacher of a distillation, if it is another model. The `train` stage takes its checkpoint."""
    address = config.training.teacher
    return {} if address is None else {f"model {address}": model_identity(address)}


def pin_models(config: PipelineConfig) -> PipelineConfig:
    """Config with models and data pinned: a hub branch to its commit, a registry alias to its version.

    The serving logs that SFT and DPO read are pinned to their present entries.

    Raises like `model_source` if a model does not exist, and `DataError` if a data set does not exist.
    """
    check_trainable(config.policy.model)
    policy = config.policy.model_copy(update={"model": pinned(config.policy.model)})
    environment, user = config.environment, getattr(config.environment, "model", None)
    if user is not None:
        environment = environment.model_copy(update={"model": pinned(user)})
    pinned_parts: dict[str, Any] = {
        "policy": policy,
        "environment": environment,
        "scenarios": pin_sources(config.scenarios),
    }
    if config.training.distillation is not None and config.training.teacher is not None:
        teacher = {"teacher_model_name_or_path": pinned(config.training.teacher)}
        distillation = config.training.distillation.model_copy(update=teacher)
        pinned_parts["training"] = config.training.model_copy(update={"distillation": distillation})
    if config.sft is not None and isinstance(config.sft.demonstrations, ServedDemonstrations):
        demonstrations = served_snapshot(config.sft.demonstrations)
        pinned_parts["sft"] = config.sft.model_copy(update={"demonstrations": demonstrations})
    if config.dpo is not None and isinstance(config.dpo.pairs, ServedPairs):
        pinned_parts["dpo"] = config.dpo.model_copy(update={"pairs": served_snapshot(config.dpo.pairs)})
    return config.model_copy(update=pinned_parts)
