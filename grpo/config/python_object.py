"""Settings of an object of the user's own code."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationInfo

from grpo.config.base import FOLDER, ByContent, Settings, from_config_folder
from grpo.user_objects import make_importable, reference_of

_DOTTED = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
_OBJECT_NAME = rf"^[A-Za-z_][\w-]*$|^{_DOTTED}:{_DOTTED}$"


def _object_name(name: str) -> str:
    """The name itself. Raises `ValueError` with the name to write if it is the place of an object in another form."""
    if re.match(_OBJECT_NAME, name) and not name.partition(":")[0].endswith(".py"):
        return name
    module, _, inner = name.rpartition(":") if ":" in name else name.rpartition(".")
    meant = f"{re.sub(r'[.]py$', '', module.strip()).replace('/', '.')}:{inner.strip()}"
    known = meant if re.match(_OBJECT_NAME, meant) else "shop.rewards:brief for brief in shop/rewards.py"
    raise ValueError(f"it is not of the form module:name. Write {known}")


ObjectName = Annotated[
    str,
    StringConstraints(max_length=200),
    AfterValidator(_object_name),
    Field(json_schema_extra={"pattern": _OBJECT_NAME}),
]
"""`module:name`, `module:Class.method`, or the name of an entry point."""


def finite(value: Any, place: str = "options") -> Any:
    """Refuse infinite numbers and NaN, however deep."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{place} is {value}. Write a finite number")
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        finite(part, f"{place}.{name}")
    return value


Options = Annotated[dict[str, Any], AfterValidator(finite)]
"""Arguments by name, finite."""


def import_folder(given: str | None, objects: Iterable[str], info: ValidationInfo) -> str | None:
    """Folder of the user's modules, after it was added to the import path.

    It is the given folder, or else the folder of the YAML file, if that has the module of one of the objects.
    """
    folder: Path | None = (info.context or {}).get(FOLDER)
    if given is None and folder is not None:
        places = [folder / name.partition(":")[0].partition(".")[0] for name in objects]
        if any(place.is_dir() or place.with_suffix(".py").is_file() for place in places):
            given = str(folder.resolve())
    if given is not None:
        make_importable(Path(given))
    return given


VARIABLE = "$"
"""Beginning of a variable among declared reads."""


def _declared(value: Any, info: ValidationInfo) -> Any:
    """Declared read: a path counts from the folder of the YAML file, and `$NAME` is a variable."""
    is_variable = isinstance(value, str) and value.startswith(VARIABLE)
    return value if is_variable else from_config_folder(value, info)


Reads = Annotated[tuple[Annotated[str, BeforeValidator(_declared)], ...], ByContent()]
"""Files and folders, by content, and environment variables, as `$NAME`, that code of your own reads unseen."""


class UserObject(Settings):
    """Class or function of the user's own code, with its arguments."""

    group: ClassVar[str]
    """Entry point group of its kind."""
    object: ObjectName
    """`module:name`, in the folder of the config or installed, or the name of an installed package's entry point."""
    options: Options = Field(default_factory=dict)
    """Arguments, by name."""
    reads: Reads = ()
    """Files, folders and `$VARIABLES` to add to the cache key, because it reads them unseen, e.g. in a program that it
    starts. See docs/internals/identity.md."""

    @property
    def reference(self) -> str:
        """`module:name`."""
        return reference_of(self.object, group=self.group)


class PythonObject(UserObject):
    """Class or function in the terms of this package."""

    kind: Literal["python"]
    """A class of your own that is derived from the package's class, or a function."""
