"""What a look at this machine shows, and how bad it is.

ok        here, and as it should be
absent    not here, and nothing needs it until somebody asks for it
warning   it works, but something will go wrong or slowly
problem   a run would fail
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from grpo.errors import ConfigError, StorageError

State = Literal["ok", "absent", "warning", "problem"]


class CheckResult(BaseModel):
    """What one look showed."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    area: str
    name: str
    state: State
    found: str
    remedy: str = ""
    """What to do, where something is wrong."""
    wrong_input: bool = False
    """True where a setting is wrong, False where a machine or server fails."""

    def error(self) -> Exception:
        """The error that a run ends with where this is a problem."""
        message = f"{self.found}; {self.remedy}"
        if self.wrong_input:
            return ConfigError(message)
        return ConnectionError(message) if self.area == "servers" else StorageError(message)


def require(findings: Iterable[CheckResult]) -> None:
    """Raise the error of the first problem: what the doctor shows is what a run refuses."""
    for finding in findings:
        if finding.state == "problem":
            raise finding.error()


class DoctorReport(BaseModel):
    """Everything that was found; a change of meaning raises the schema version."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal["1"] = "1"
    findings: tuple[CheckResult, ...]

    @property
    def healthy(self) -> bool:
        """Whether a run can start."""
        return all(finding.state != "problem" for finding in self.findings)
