"""Home folder of runs on this machine: GRPO_HOME."""

from __future__ import annotations

import os
from pathlib import Path

from grpo.errors import ConfigError

_UNSAFE = "?#%\\"
"""Characters that end or escape a path in the URI of a database or an artifact."""


def home() -> Path:
    """Return the folder of GRPO_HOME, by default `runs` below the working folder.

    Raises `ConfigError` for characters that break URIs: a database at `sqlite:///a?b/x.db` would be in `a`.
    """
    folder = Path(os.environ.get("GRPO_HOME") or "runs").expanduser().resolve()
    unsafe = sorted({character for character in str(folder) if character in _UNSAFE or not character.isprintable()})
    if unsafe:
        shown = ", ".join(map(repr, unsafe))
        raise ConfigError(
            f"GRPO_HOME {str(folder)!r} holds {shown}, which addresses of databases and artifacts cannot; choose a "
            "folder without such characters"
        )
    return folder
