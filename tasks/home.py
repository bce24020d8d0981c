"""Where runs leave what they leave behind on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The folder that GRPO_HOME names, or `runs` below the present one."""
    return Path(os.environ.get("GRPO_HOME", "runs")).resolve()
