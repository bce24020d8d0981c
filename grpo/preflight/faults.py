"""Faults of a config: the errors that a run would have ended with, and one error that names all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from grpo.errors import (
    AddressError,
    ArtifactError,
    BudgetError,
    CapacityError,
    ConfigError,
    DataError,
    GRPOError,
    PolicyError,
    RegistryError,
    RewardError,
    StorageError,
)

_KINDS: tuple[type[Exception], ...] = (
    *(ConfigError, DataError, PolicyError, AddressError, RegistryError, RewardError, BudgetError, StorageError),
    *(CapacityError, ArtifactError, GRPOError, ConnectionError, TimeoutError),
)
"""Types of a joint error. It has the type of the first fault, because the exit code of a command depends on it."""
EXPECTED = (GRPOError, ConnectionError, TimeoutError)
"""Errors that are faults of a config or of what it names. Any other exception is a fault of this project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One reason why a run would fail."""

    check: str
    """Name of the check that found it."""
    error: Exception
    """Error with value, place and remedy, and with the type that the run would have ended with."""

    def __str__(self) -> str:
        return str(self.error)


def raise_faults(faults: Sequence[Fault]) -> NoReturn:
    """Raise the only fault as it is, or one error that lists all faults, one per line, with the type of the first."""
    first, *others = (fault.error for fault in faults)
    if not others:
        raise first
    kind = next(kind for kind in _KINDS if isinstance(first, kind))
    lines = [str(first), f"and {len(others)} more:" if len(others) > 1 else "and one more:"]
    raise kind("\n  ".join([*lines, *map(str, others)])) from first
