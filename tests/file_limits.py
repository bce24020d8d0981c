"""Limit of open files that a shell has by default, for servers that a test starts."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

DEFAULT_FILES = 1024


@contextmanager
def default_files() -> Iterator[None]:
    """Have the default while the block runs; processes that are started in it inherit the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, DEFAULT_FILES), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
