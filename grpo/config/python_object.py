"""Settings of an object of the user's own code."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, StringConstraints

from grpo.config.base import Settings
from grpo.user_objects import reference_of

ObjectName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][\w-]*$|^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$", max_length=200)
]
"""`module:name`, or the name of an entry point."""


def finite(value: Any, place: str = "options") -> Any:
    """Refuse infinite numbers and NaN, however deep."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{place} is {value}; write a finite number")
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        finite(part, f"{place}.{name}")
    return value


Options = Annotated[dict[str, Any], AfterValidator(finite)]
"""Arguments by name, finite."""


class UserObject(Settings):
    """Class or function of the user's own code, with its arguments."""

    group: ClassVar[str]
    """Entry point group of its kind."""
    object: ObjectName
    """`module:name`, in the folder of the config or installed, or the name of an installed package's entry point."""
    options: Options = Field(default_factory=dict)
    """Arguments, by name."""

    @property
    def reference(self) -> str:
        """`module:name`."""
        return reference_of(self.object, group=self.group)


class PythonObject(UserObject):
    """Class or function in the terms of this package."""

    kind: Literal["python"]
    """A class of your own, derived from that of this package."""
