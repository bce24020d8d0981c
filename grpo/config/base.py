"""The base of every setting: frozen, finite, misspelt keys refused, the docstring under a field is its label."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Base of all settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
