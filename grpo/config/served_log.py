"""Settings that name a serving log, for scenarios, demonstrations and preference pairs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from grpo.config.base import LocalPlace, Settings
from grpo.storage.home import home


def refuse_removed_log(value: Any) -> Any:
    """Return the settings of a source. Raises `ValueError` for the format of other servers that `served` replaces."""
    if isinstance(value, dict) and value.get("kind") == "conversation_log":
        raise ValueError(
            "kind conversation_log is not read. Write kind: served, and let your server append its conversations to "
            "that log by grpo.log.append or POST /v1/log (docs/retraining.md)"
        )
    return value


class AllowedUse(Settings):
    """Licences and consents of conversations that may be trained on."""

    licences: tuple[str, ...] = Field(min_length=1)
    """Allowed values of `metadata.licence`."""
    consents: tuple[str, ...] = Field(default=("training",), min_length=1)
    """Allowed values of `metadata.consent`. A conversation without consent is always rejected."""


class ServedLogSettings(Settings):
    """Log of `grpo serve`, or of another server that appends to it."""

    kind: Literal["served"]
    """Turns that were served, and the feedback on them."""
    path: LocalPlace = Field(default_factory=lambda: str(home() / "served"))
    """Folder of the log, by default `served` in GRPO_HOME. A missing folder is an empty log."""
    segments: tuple[str, ...] | None = None
    """Segments to read. If one may grow, add its end in bytes (`20261122T030000-3fa1:81920`). None reads all."""
