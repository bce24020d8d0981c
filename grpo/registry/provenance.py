"""What a version was made from: enough to make it again, and to say what has changed since."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, JsonValue

PROVENANCE = "provenance"
"""Key in the metadata of a registered model."""


class Provenance(BaseModel):
    """Kept in the metadata of the registered model, so it goes wherever the model goes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    config: dict[str, JsonValue]
    """The whole configuration of the run."""
    seed: int
    sources: str
    """Digest of the files that the scenarios were read from."""
    scenarios: str
    """Digest of the scenarios that were read."""
    model: str
    """Digest of the model folder that training started from."""
    code: str
    """Digest of the library and of the packages that numbers depend on."""
    commit: str | None
    """Git commit of the project, with `+` where files were changed; None outside a repository."""
    packages: dict[str, str]
    external_digests: dict[str, str] = {}
    """Digests of the user's modules and files, and versions of the packages that these import, by name."""
    machine: dict[str, str]
    """Kind of processor and number of threads: sums depend on them in the last digit."""
    policies: tuple[str, ...]
    """The base policy, and the policy after each iteration; the last one is registered."""
    champion: str
    """The policy that it was judged against."""
    decision: str
    """What the gates said."""
    checks: dict[str, float | None]
    """The number of each gate."""

    def differences(self, now: Provenance) -> dict[str, tuple[str, str]]:
        """What is not as it was, (then, now) by name, in the order in which it should be looked at."""
        named = {"code": (self.code, now.code), "commit": (self.commit or "none", now.commit or "none")}
        for package in sorted({*self.packages, *now.packages}):
            named[f"package {package}"] = (self.packages.get(package, "none"), now.packages.get(package, "none"))
        for name in sorted({*self.external_digests, *now.external_digests}):
            named[name] = (self.external_digests.get(name, "none"), now.external_digests.get(name, "none"))
        named |= {
            "sources": (self.sources, now.sources),
            "base model": (self.model, now.model),
            "scenarios": (self.scenarios, now.scenarios),
        }
        for name in sorted({*self.machine, *now.machine}):
            named[name] = (self.machine.get(name, "none"), now.machine.get(name, "none"))
        return {name: (then, today) for name, (then, today) in named.items() if then != today}
