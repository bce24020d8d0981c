"""Conversation memory per user: the last turns, and summaries of older ones."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from grpo.agents.extractive_summary import content_words, summarize
from grpo.errors import ConfigError, DataError
from grpo.messages import ROLES
from grpo.storage.files import write_atomically

_FORMAT = 1
_SUMMARY_WORDS = 120
_MAX_SUMMARIES = 50
_MAX_USERS = 10_000
"""If there are more users, the least recently active one is removed."""


class _UserMemory:
    """Turns and summaries of one user."""

    def __init__(self, max_turns: int) -> None:
        self.turns: deque[tuple[str, str]] = deque(maxlen=max_turns)
        self.summaries: deque[str] = deque(maxlen=_MAX_SUMMARIES)
        self.unsummarized = 0
        """Number of last turns that no summary covers."""


class ConversationMemory:
    """Memory of `max_turns` turns per user. More than `summarization_threshold` new turns are summarized.

    threshold 50:  turn 51 summarizes turns 1–50, turn 101 turns 51–100

    If `path` is given, the memory is loaded from this JSON file, and saved atomically after each turn. If two processes
    share a file, the last write wins.
    Raises `ConfigError` if the sizes do not fit together, `DataError` if the file is not a memory.
    """

    def __init__(
        self, *, max_turns: int = 100, summarization_threshold: int = 50, path: Path | str | None = None
    ) -> None:
        if not 1 <= summarization_threshold < max_turns:
            raise ConfigError(
                f"summarization_threshold {summarization_threshold} must be at least 1 and below max_turns "
                f"{max_turns}, because turns that were dropped cannot be summarized"
            )
        self.max_turns = max_turns
        self.summarization_threshold = summarization_threshold
        self.path = None if path is None else Path(path)
        self._users: dict[str, _UserMemory] = {}
        if self.path is not None and self.path.exists():
            self._load(self.path)

    def add(self, role: str, content: str, *, user_id: str = "") -> None:
        """Store one turn of a user's conversation. Raises `DataError` for an unknown role."""
        if role not in ROLES:
            raise DataError(f"a turn of role {role!r} cannot be stored. Use one of {', '.join(ROLES)}")
        user = self._users.pop(user_id, None) or _UserMemory(self.max_turns)
        self._users[user_id] = user
        if len(self._users) > _MAX_USERS:
            del self._users[next(iter(self._users))]
        user.turns.append((role, content))
        user.unsummarized += 1
        if user.unsummarized > self.summarization_threshold:
            old = list(user.turns)[-user.unsummarized : -1]
            user.summaries.append(summarize([content for _, content in old], max_words=_SUMMARY_WORDS))
            user.unsummarized = 1
        if self.path is not None:
            self.save(self.path)

    def forget(self, is_erased: Callable[[str], bool]) -> None:
        """Remove each user if `is_erased` returns True for the id, also from the file."""
        erased = [user_id for user_id in self._users if is_erased(user_id)]
        for user_id in erased:
            del self._users[user_id]
        if erased and self.path is not None:
            self.save(self.path)

    def turns(self, user_id: str = "") -> list[tuple[str, str]]:
        """Role and text of a user's stored turns, oldest first."""
        return list(self._users[user_id].turns) if user_id in self._users else []

    def summaries(self, user_id: str = "") -> list[str]:
        """Summaries of a user's older turns, oldest first."""
        return list(self._users[user_id].summaries) if user_id in self._users else []

    def recall(self, query: str, *, user_id: str = "", limit: int = 3, exclude: Collection[str] = ()) -> list[str]:
        """Turns and summaries of a user that match the query by inverse document frequency, best first.

        A shared word scores log(1 + n/m) if m of the n texts contain it. If two texts tie, the later one comes first.
        """
        turns = [text for _, text in reversed(self.turns(user_id)) if text not in exclude]
        texts = list(dict.fromkeys(turns + self.summaries(user_id)[::-1]))
        words = [set(content_words(text)) for text in texts]
        document_frequency = Counter(word for text_words in words for word in text_words)
        query_words = set(content_words(query))
        scores = [
            sum(math.log(1 + len(texts) / document_frequency[word]) for word in query_words & text_words)
            for text_words in words
        ]
        ranking = sorted(range(len(texts)), key=lambda i: -scores[i])
        return [texts[i] for i in ranking if scores[i] > 0][:limit]

    def save(self, path: Path) -> None:
        """Write everything to a JSON file atomically."""
        users = {
            name: {"turns": list(user.turns), "summaries": list(user.summaries), "fresh": user.unsummarized}
            for name, user in self._users.items()
        }
        document = json.dumps({"format": _FORMAT, "owners": users}, ensure_ascii=False, indent=1)
        write_atomically(path, document, mode=0o600)

    def _load(self, path: Path) -> None:
        try:
            record: Any = json.loads(path.read_text(encoding="utf-8"))
            if record["format"] != _FORMAT:
                raise DataError(
                    f"{path} has memory format {record['format']}, but this release reads {_FORMAT}. Use the release "
                    "that wrote it, or move the file away to start without a memory"
                )
            for name, stored in record["owners"].items():
                user = self._users[name] = _UserMemory(self.max_turns)
                user.turns.extend((str(role), str(text)) for role, text in stored["turns"])
                user.summaries.extend(map(str, stored["summaries"]))
                user.unsummarized = min(int(stored["fresh"]), len(user.turns))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path} is not a conversation memory: {error}. Move the file away to start without a memory"
            ) from error
