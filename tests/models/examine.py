"""A row of docs/internals/models.md: every aspect of one family, the failed ones with their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from grpo.errors import GRPOError, PolicyError
from grpo.learner.batch import Sample
from grpo.policy.transformers.model import TransformersPolicy
from tests.models import survey
from tests.models.families import tiny_model
from tests.models.page import Row

_FAILURES = (GRPOError, ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError)
_FAILURES += (NotImplementedError, RuntimeError, TypeError, ValueError)


def examine(family: str, *, registry: Path) -> Row:
    """Results of one family, registered in that folder; an error in one aspect leaves the others to be examined."""
    try:
        policy = TransformersPolicy(tiny_model(family), survey.tokenizer())
    except PolicyError as error:
        return Row(family=family, refusal=" ".join(str(error).split()))
    except _FAILURES as error:
        return Row(family=family, errors={"rollout": _sentence(error)})
    aspects = _Aspects(family, policy, registry)
    aspects.run("rollout", aspects.rollout)
    if aspects.samples:
        aspects.run("learner", aspects.learner)
        for aspect in ("checkpoint", "LoRA", "MLflow"):
            aspects.run(aspect, getattr(aspects, aspect.lower()))
    return Row(
        family=family,
        path=policy.path_check.path,
        differences=aspects.differences,
        adapted=aspects.adapted,
        errors=aspects.errors,
    )


def _sentence(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


class _Aspects:
    def __init__(self, family: str, policy: TransformersPolicy, registry: Path) -> None:
        self._family = family
        self._registry = registry
        self._policy = policy
        self._plain = survey.plain_model(family)
        self.samples: Sequence[Sample] = ()
        self.differences: dict[str, tuple[float, ...]] = {}
        self.adapted = 0
        self.errors: dict[str, str] = {}

    def run(self, aspect: str, act: Callable[[], None]) -> None:
        """Examine one aspect, and keep its error."""
        try:
            act()
        except _FAILURES as error:
            self.errors[aspect] = _sentence(error)

    def rollout(self) -> None:
        together, alone = (
            survey.to_samples(survey.rollout(self._policy, concurrency=concurrency)) for concurrency in (3, 1)
        )
        self.samples = together
        self.differences["rollout"] = (
            survey.rollout_difference(self._plain, together),
            survey.rollout_difference(self._plain, alone),
        )

    def learner(self) -> None:
        logprobs, gradient = survey.learner_differences(self._policy, self._plain, self.samples)
        self.differences |= {"learner": logprobs, "gradient": gradient}

    def checkpoint(self) -> None:
        self.differences["checkpoint"] = (survey.checkpoint_difference(self._family, self.samples),)

    def lora(self) -> None:
        self.adapted, difference = survey.adapter_differences(self._family, self.samples)
        self.differences["LoRA"] = (difference,)

    def mlflow(self) -> None:
        self.differences["MLflow"] = (
            survey.registration_difference(self._family, self.samples, folder=self._registry),
        )
