"""Reader of a file: the frames of the stack show if the user's code reads it.

    Path.read_text     standard library
    load_words         shop/rewards.py                   the user's
    <module>           shop/rewards.py                   the user's, while it is imported: `shop.rewards`
    load_object        grpo/user_objects.py              this project: the walk ends here

A read during the import of an installed package belongs to the package, because its version is in the identity.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType

from grpo.reads.modules import PROJECT, owner

_claimed: set[str] = set()
"""Top-level modules that settings name. They count as the user's even if they are installed."""


@dataclass(frozen=True, slots=True)
class Reader:
    """The user's code in a stack."""

    is_user: bool
    """True if a frame is the user's."""
    modules: tuple[str, ...]
    """Modules of the user's that are imported at this moment."""
    in_project: bool
    """True if a frame is this project's."""
    callers: tuple[str, ...] = ()
    """Modules of the user's with a function in the stack."""


def claim(module: str) -> None:
    """Count a module and its whole package as the user's, unless it belongs to this project or to Python."""
    top = module.partition(".")[0]
    if top not in PROJECT and top not in sys.stdlib_module_names:
        _claimed.add(top)


def reader() -> Reader:
    """Walk the stack outwards up to the first frame of this project, and skip the frames of this package."""
    frame = sys._getframe(1)
    modules: list[str] = []
    callers: list[str] = []
    is_user = in_project = False
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        whose = "user" if module.partition(".")[0] in _claimed else owner(frame.f_code.co_filename)
        is_import = frame.f_code.co_name == "<module>"
        if whose == "project" and not module.startswith("grpo.reads."):
            in_project = True
            break
        if whose == "installed" and is_import:
            break
        if whose == "user":
            is_user = True
            if module != "__main__":
                (modules if is_import else callers).append(module)
        frame = frame.f_back  # type: ignore[assignment]
    return Reader(is_user, tuple(modules), in_project, tuple(dict.fromkeys(callers)))


def is_import_system(frame: FrameType) -> bool:
    """Return True if Python runs this frame to find a module, for which it lists the folders of the import path."""
    return "importlib" in str(frame.f_globals.get("__name__", ""))
