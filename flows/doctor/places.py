"""Where things are kept: folders that may not be there yet, and addresses of stores."""

from __future__ import annotations

from pathlib import Path

import fsspec


def nearest(place: Path) -> Path:
    """The place, or the nearest above it that is there."""
    place = place.resolve()
    return next(above for above in (place, *place.parents) if above.exists())


def protocol_known(store: str) -> bool:
    """Whether fsspec reads such an address."""
    protocol = fsspec.core.split_protocol(store)[0]
    return protocol is None or protocol in fsspec.available_protocols()
