"""Memory of retired versions."""

from __future__ import annotations

import ctypes


def return_freed_memory() -> None:
    """Give freed memory back to the operating system, where the C library keeps it: `malloc_trim` of glibc.

    Keys and values of a retired version lie between those of others, so that their pages stay resident by themselves.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
