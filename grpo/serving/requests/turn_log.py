"""Log of turns and feedback, as the service, its routes and its requests use it.

`grpo.log.writer` implements it in a folder.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from grpo.log.ids import ServingIds
from grpo.log.receipt import ErasureReceipt
from grpo.log.records import Record


class TurnLog(Protocol):
    """Log of turns and feedback."""

    async def append(self, record: Record) -> None:
        """Append a record. Returns when it is durable."""
        ...

    async def erase(
        self, *, user: str | None = None, conversation_id: str | None = None, ended: int = 0
    ) -> ErasureReceipt | None:
        """Erase a user by name, or a conversation, with all copies. None if nothing was found.

        `ended` is the number of turns in progress that were ended for it.
        """
        ...

    def user_hash(self, name: str) -> str:
        """Hash of a user's name, by which the user's turns are found when they are erased."""
        ...

    @property
    def ids(self) -> ServingIds:
        """Ids of conversations and turns."""
        ...

    def is_conversation_erased(self, conversation_id: str, *, user: str = "", time: datetime | None = None) -> bool:
        """True if a conversation was erased, or its user (by the hash) after the conversation began.

        Raises `DataError` if the log cannot tell.
        """
        ...
