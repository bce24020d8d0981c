"""What users made of a served version, as the conversation log has it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from grpo.config.scenarios import ConversationLogSource, Source
from grpo.scenarios.conversation_log import ConversationLog


def production_metrics(sources: Iterable[Source], model: str, since: datetime | None = None) -> dict[str, list[float]]:
    """Values of the conversations of a version (`support-desk/3`) by each measure, oldest first.

    What is damaged of the log is left out here; intake counts it.
    """
    logs = (source for source in sources if isinstance(source, ConversationLogSource))
    entries = itertools.chain.from_iterable(ConversationLog(Path(log.path)).read(log.files) for log in logs)
    conversations = (entry.conversation for entry in entries if entry.conversation is not None)
    served = sorted(
        (talk for talk in conversations if talk.model == model and (since is None or talk.time >= since)),
        key=lambda talk: (talk.time, talk.id),
    )
    return {
        "reward": [talk.reward for talk in served if talk.reward is not None],
        "rating": [talk.rating for talk in served if talk.rating is not None],
    }
