"""What an agent remembers of earlier conversations, each user's apart: last turns, and summaries of older ones."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Collection
from pathlib import Path
from typing import Any

from grpo.agents.extractive_summary import content_words, summarize
from grpo.errors import ConfigError, DataError
from grpo.messages import ROLES
from grpo.storage.files import write_atomically

_FORMAT = 1
_SUMMARY_WORDS = 120
_MOST_SUMMARIES = 50
_MOST_OWNERS = 10_000
"""Users that are remembered; who was silent for longest is forgotten first."""


class _Owner:
    """What is remembered of one user."""

    def __init__(self, max_turns: int) -> None:
        self.turns: deque[tuple[str, str]] = deque(maxlen=max_turns)
        self.summaries: deque[str] = deque(maxlen=_MOST_SUMMARIES)
        self.fresh = 0
        """Turns that no summary covers, the last ones."""


class ConversationMemory:
    """Remembers `max_turns` turns of each user; more than `summarization_threshold` that no summary covers make one.

    threshold 50:  turn 51 makes a summary of turns 1–50, turn 101 one of 51–100

    With a `path` it is a JSON file, written anew and whole after each turn and read at the beginning; of two processes
    that write one file the last wins.
    Raises `ConfigError` for sizes that do not fit each other, `DataError` for a file that holds no memory.
    """

    def __init__(
        self, *, max_turns: int = 100, summarization_threshold: int = 50, path: Path | str | None = None
    ) -> None:
        if not 1 <= summarization_threshold < max_turns:
            raise ConfigError(
                f"summarization_threshold {summarization_threshold} must be at least 1 and below max_turns "
                f"{max_turns}: turns that were forgotten cannot be summarized"
            )
        self.max_turns = max_turns
        self.summarization_threshold = summarization_threshold
        self.path = None if path is None else Path(path)
        self._owners: dict[str, _Owner] = {}
        if self.path is not None and self.path.exists():
            self._load(self.path)

    def add(self, role: str, content: str, *, user_id: str = "") -> None:
        """Remember one turn of a user's conversation; raises `DataError` for an unknown role."""
        if role not in ROLES:
            raise DataError(f"a turn of role {role!r} cannot be remembered; use one of {', '.join(ROLES)}")
        known = self._owners.pop(user_id, None) or _Owner(self.max_turns)
        self._owners[user_id] = known
        if len(self._owners) > _MOST_OWNERS:
            del self._owners[next(iter(self._owners))]
        known.turns.append((role, content))
        known.fresh += 1
        if known.fresh > self.summarization_threshold:
            old = list(known.turns)[-known.fresh : -1]
            known.summaries.append(summarize([content for _, content in old], max_words=_SUMMARY_WORDS))
            known.fresh = 1
        if self.path is not None:
            self.save(self.path)

    def turns(self, user_id: str = "") -> list[tuple[str, str]]:
        """Role and text of each turn that is remembered of a user, oldest first."""
        return list(self._owners[user_id].turns) if user_id in self._owners else []

    def summaries(self, user_id: str = "") -> list[str]:
        """Summaries of a user's older turns, oldest first."""
        return list(self._owners[user_id].summaries) if user_id in self._owners else []

    def recall(self, query: str, *, user_id: str = "", limit: int = 3, without: Collection[str] = ()) -> list[str]:
        """Turns and summaries of this user that share words with the query, the likest first, at most `limit`.

        A shared word counts log(1 + n/m) where m of all n texts have it; of two alike the later comes first.
        """
        texts = [text for _, text in reversed(self.turns(user_id)) if text not in without] + self.summaries(user_id)[
            ::-1
        ]
        found = list(dict.fromkeys(texts))
        bags = [set(content_words(text)) for text in found]
        shared = Counter(word for bag in bags for word in bag)
        asked = set(content_words(query))
        scores = [sum(math.log(1 + len(found) / shared[word]) for word in asked & bag) for bag in bags]
        best = sorted(range(len(found)), key=lambda place: -scores[place])
        return [found[place] for place in best if scores[place] > 0][:limit]

    def save(self, path: Path) -> None:
        """Write everything to a JSON file, which is there whole or not at all."""
        owners = {
            name: {"turns": list(known.turns), "summaries": list(known.summaries), "fresh": known.fresh}
            for name, known in self._owners.items()
        }
        write_atomically(path, json.dumps({"format": _FORMAT, "owners": owners}, ensure_ascii=False, indent=1))

    def _load(self, path: Path) -> None:
        try:
            record: Any = json.loads(path.read_text(encoding="utf-8"))
            if record["format"] != _FORMAT:
                raise DataError(f"{path} has memory format {record['format']}, this code reads {_FORMAT}")
            for name, stored in record["owners"].items():
                known = self._owners[name] = _Owner(self.max_turns)
                known.turns.extend((str(role), str(text)) for role, text in stored["turns"])
                known.summaries.extend(map(str, stored["summaries"]))
                known.fresh = min(int(stored["fresh"]), len(known.turns))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} holds no memory: {error}; move it away to begin anew") from error
