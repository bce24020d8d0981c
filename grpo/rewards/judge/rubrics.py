"""Rubrics of the judge: weighted criteria with a version, as files under data/rubrics."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import Field, ValidationError, field_validator

from grpo.config.base import Settings
from grpo.config.loading import describe_errors, shortened
from grpo.errors import ConfigError
from grpo.storage.shipped import shipped_folder

RUBRICS = shipped_folder() / "rubrics"


class Criterion(Settings):
    """One criterion of a rubric."""

    name: str = Field(min_length=1)
    weight: float = Field(gt=0, le=1)
    """Share in the score."""
    text: str = Field(min_length=1)
    """Description of good and bad conversations by this criterion."""


class Rubric(Settings):
    """The criteria of one domain. Their weights sum to 1."""

    name: str = Field(min_length=1)
    version: int = Field(ge=1)
    """Raise it with every change of a criterion, because scores of two versions are not comparable."""
    description: str = Field(min_length=1)
    criteria: tuple[Criterion, ...] = Field(min_length=1)

    @field_validator("criteria")
    @classmethod
    def _check(cls, criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        names = [criterion.name for criterion in criteria]
        if len(set(names)) < len(names):
            raise ValueError(f"criteria {names} name one criterion twice")
        total = sum(criterion.weight for criterion in criteria)
        if abs(total - 1) > 1e-9:
            raise ValueError(f"the weights of the criteria sum to {total:g}. Change them so that they sum to 1")
        return criteria

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each criterion by its name."""
        return {criterion.name: criterion.weight for criterion in self.criteria}

    @property
    def hash(self) -> str:
        """Digest of the whole rubric, first 16 hex digits."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


def find_rubric(rubric: str | Mapping[str, Any] | Rubric) -> Rubric:
    """Shipped rubric by name, or one written out in the config. Raises `ConfigError`.

    The latter is part of the config and not a file, so that a change invalidates the cached score stage.
    """
    if isinstance(rubric, Rubric):
        return rubric
    document: Any = rubric
    if isinstance(rubric, str):
        shipped = sorted(path.stem for path in RUBRICS.glob("*.yaml"))
        if rubric not in shipped:
            raise ConfigError(f"no rubric {rubric!r} in {RUBRICS}. Use one of {', '.join(shipped)}, or write one out")
        document = yaml.safe_load((RUBRICS / f"{rubric}.yaml").read_text(encoding="utf-8"))
    try:
        return Rubric.model_validate(document)
    except ValidationError as error:
        lines = describe_errors(error, Rubric, document)
        raise ConfigError(f"rubric {shortened(rubric)}: {'; '.join(lines)}") from error
