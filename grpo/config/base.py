"""Base class of all settings, the conditions under which a setting is read, and valid names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, model_validator


@dataclass(frozen=True, slots=True)
class ReadWith:
    """Mark of a field that is read only where another setting has one of these values, or without values, is set."""

    setting: str
    values: tuple[object, ...] = ()

    def reads(self, value: object) -> bool:
        """Decide by the value of the other setting."""
        return value in self.values if self.values else bool(value)

    def fault(self, value: object) -> str:
        """Reason and remedy for a field that is not read."""
        remedy = f", or set {self.setting} to {self.values[0]}" if self.values and type(self) is ReadWith else ""
        condition = f"with {self.setting} {value}" if value else f"without {self.setting}"
        return f"is not read {condition}; leave it out{remedy}"


class IgnoredWith(ReadWith):
    """Mark of a field that is not read where another setting has one of these values, or without values, is set."""

    def reads(self, value: object) -> bool:
        """Decide by the value of the other setting."""
        return not super().reads(value)


class Settings(BaseModel):
    """Base of all settings: frozen, finite, unknown keys refused, docstrings of fields as descriptions.

    A field marked `ReadWith` or `IgnoredWith` may differ from its default only where it is read:

        max_rounds: Annotated[int, ReadWith("informative_groups")] = 3
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _settings_are_read(self) -> Self:
        for name, field in type(self).model_fields.items():
            if getattr(self, name) == field.get_default(call_default_factory=True):
                continue
            for mark in field.metadata:
                if isinstance(mark, ReadWith) and not mark.reads(value := getattr(self, mark.setting)):
                    raise ValueError(f"{name} {mark.fault(value)}")
        return self


HOME_FOLDERS = frozenset(
    {"artifacts", "conversations", "ingest", "judge", "locks", "mlartifacts", "prefect", "services"}
)
"""Folders of a home that are not the report of a run."""


def _not_a_folder_of_the_home(name: str) -> str:
    if name.lower() in HOME_FOLDERS:
        raise ValueError(f"{name} is a folder of the home; choose another name")
    return name


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100)]
"""Name of a folder, a run or a model: letters, digits, `_`, `.` and `-`, at most 100."""
RunName = Annotated[Name, AfterValidator(_not_a_folder_of_the_home)]
"""`Name` of a run, whose report has a folder in the home."""
