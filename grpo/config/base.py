"""The base of every setting: frozen, finite, misspelt keys refused, the docstring under a field is its label."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints


class Settings(BaseModel):
    """Base of all settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


HOME_FOLDERS = frozenset(
    {"artifacts", "conversations", "ingest", "judge", "locks", "mlartifacts", "prefect", "services"}
)
"""Folders of a home that are not the report of a run."""


def _not_a_folder_of_the_home(name: str) -> str:
    if name.lower() in HOME_FOLDERS:
        raise ValueError(f"{name} is a folder of the home; choose another name")
    return name


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100)]
"""Letters, digits, `_`, `.` and `-`, at most 100 of them: a name of a folder, a run and a model everywhere."""
RunName = Annotated[Name, AfterValidator(_not_a_folder_of_the_home)]
"""A `Name` that is also that of a folder in the home."""
