"""Provenance of a version: config, data, code and environment.

It is enough to reproduce a version, and to name what differs if the result does.
"""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, JsonValue

from grpo.storage.documents import Document

PROVENANCE = "provenance"
"""Key in the metadata of a registered model."""

FILE = "file "
"""Prefix of the names of files among the external digests. The path follows it."""
_NUMBER = r"(-?[0-9.]+(?:e[-+]?[0-9]+)?)"
_ESTIMATE = rf"{_NUMBER} \[{_NUMBER}, {_NUMBER}\]"
_HELDOUT = re.compile(rf"(success|reward) {_ESTIMATE}, champion {_ESTIMATE}, ([0-9]+) scenarios, {_NUMBER} % intervals")


class Estimate(Document):
    """A mean with its interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


class HeldOut(Document):
    """Held-out result of a version, and of the champion that it was compared with.

    A tag holds it as text, because people read it too: `success 0.81 [0.74, 0.88], champion 0.41 [0.35, 0.47], 120
    scenarios, 95 % intervals`.
    """

    metric: Literal["success", "reward"]
    candidate: Estimate
    champion: Estimate
    scenarios: int
    confidence: float

    def __str__(self) -> str:
        return (
            f"{self.metric} {self.candidate}, champion {self.champion}, {self.scenarios} scenarios, "
            f"{100 * self.confidence:.4g} % intervals"
        )

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read the text of a tag, which is rounded to four digits. Returns None for any other text."""
        if (match := _HELDOUT.fullmatch(text)) is None:
            return None
        metric, *numbers = match.groups()
        candidate, champion = (dict(zip(("mean", "low", "high"), numbers[k : k + 3], strict=True)) for k in (0, 3))
        return cls.model_validate(
            {"metric": metric, "candidate": candidate, "champion": champion}
            | {"scenarios": numbers[6], "confidence": float(numbers[7]) / 100}
        )


class AgentRecord(Document):
    """Prompt, tools and code of the agent that a version was trained as, which the run's config does not have."""

    system_prompt: str
    """System prompt of the environment, which comes before the prompts of the agent and of the conversation."""
    tools: tuple[str, ...]
    """Tools of the environment and of the agent, each as a JSON text, because MLflow would sort the keys of objects,
    and a prompt has them in their own order."""
    modules: dict[str, str] = Field(default_factory=dict)
    """sha256 of the user's files that the agent and the renderer import, by their path below an import folder."""
    environment_modules: dict[str, str] = Field(default_factory=dict)
    """The same for the environment, which executes its tools."""


class Provenance(Document):
    """Provenance in the metadata of a registered model."""

    config: dict[str, JsonValue]
    """The whole configuration of the run."""
    seed: int
    sources: str
    """Digest of the scenario source files."""
    scenarios: str
    """Digest of the validated scenarios."""
    model: str
    """Digest of the base model folder."""
    code: str
    """Digest of the library's sources and of the numeric packages."""
    commit: str | None
    """Git commit of the project, with `+` for uncommitted changes. None outside a repository."""
    packages: dict[str, str]
    external_digests: dict[str, str] = Field(default_factory=dict)
    """Digests of the user's modules and files, and versions of the packages that they import, by name."""
    machine: dict[str, str]
    """Processor and number of threads, because the last digit of floating-point sums depends on them."""
    policies: tuple[str, ...]
    """Hashes of the base policy and of the policy after each iteration. The last one is registered."""
    champion: str
    """Hash of the policy that it was evaluated against."""
    decision: str
    """Reason of the gates' verdict."""
    checks: dict[str, float | None]
    """Values of the gates."""
    conditions: dict[str, str] = Field(default_factory=dict)
    """Conditions of the gates, e.g. `> 0`, by name."""
    failed_gates: tuple[str, ...] = ()
    heldout: HeldOut | None = None
    """Result on the held-out scenarios. None if the version was not evaluated."""
    agent: AgentRecord | None = None
    """Agent to serve the version with. None if the run registers nothing."""

    def differences(self, now: Provenance) -> dict[str, tuple[str, str]]:
        """Differing values, (then, now) by name, ordered by likely cause: code, packages, data, machine."""
        named = {"code": (self.code, now.code), "commit": (self.commit or "none", now.commit or "none")}
        for package in sorted({*self.packages, *now.packages}):
            named[f"package {package}"] = (self.packages.get(package, "none"), now.packages.get(package, "none"))
        before, today = _without_moved(self.external_digests, now.external_digests)
        for name in sorted({*before, *today}):
            named[name] = (before.get(name, "none"), today.get(name, "none"))
        named |= {
            "sources": (self.sources, now.sources),
            "base model": (self.model, now.model),
            "scenarios": (self.scenarios, now.scenarios),
        }
        for name in sorted({*self.machine, *now.machine}):
            named[name] = (self.machine.get(name, "none"), now.machine.get(name, "none"))
        return {name: (then, today) for name, (then, today) in named.items() if then != today}


def _without_moved(then: dict[str, str], now: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Digests by name, without files that have the same content and only lie elsewhere now.

    then  file /a/words.txt 1f    now  file /b/words.txt 1f    →    neither
    """
    gone = {digest for name, digest in then.items() if name.startswith(FILE) and name not in now}
    moved = gone & {digest for name, digest in now.items() if name.startswith(FILE) and name not in then}

    def in_place(digests: dict[str, str], others: dict[str, str]) -> dict[str, str]:
        return {name: digest for name, digest in digests.items() if name in others or digest not in moved}

    return in_place(then, now), in_place(now, then)
