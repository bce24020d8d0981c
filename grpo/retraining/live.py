"""What users made of a served version, as the conversation log has it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from grpo.config.scenarios import ConversationLogSource, Source
from grpo.scenarios.conversation_log import ConversationLog


def worth(sources: Iterable[Source], model: str, since: datetime | None = None) -> dict[str, list[float]]:
    """What the conversations of a version (`support-desk/3`) were worth by each measure, oldest first."""
    logs = (source for source in sources if isinstance(source, ConversationLogSource))
    rows = itertools.chain.from_iterable(ConversationLog(Path(log.path)).rows(log.files) for log in logs)
    served = sorted(
        (row["time"], row["id"], row)
        for _, _, row in rows
        if row["model"] == model and (since is None or row["time"] >= since)
    )
    return {
        measure: [row[measure] for *_, row in served if row[measure] is not None] for measure in ("reward", "rating")
    }
