"""Log of a service, as its routes and requests use it; `grpo.serving.log` is the one of folders."""

from __future__ import annotations

from typing import Protocol

from grpo.scenarios.served.records import Record
from grpo.serving.erasure_receipt import ErasureReceipt
from grpo.serving.ids import ServingIds


class TurnLog(Protocol):
    """Log of turns and feedback."""

    async def append(self, record: Record) -> None:
        """Return when the record is durable."""
        ...

    async def erase(
        self, *, user: str | None = None, conversation_id: str | None = None, ended: int = 0
    ) -> ErasureReceipt | None:
        """Erase a user, by its name, or a conversation, with all copies; None where nothing was found.

        `ended` is the number of turns in progress that were ended for it.
        """
        ...

    def user_hash(self, name: str) -> str:
        """Hash of a user's name, by which its turns are erased."""
        ...

    @property
    def ids(self) -> ServingIds:
        """Ids of conversations and turns."""
        ...

    def is_conversation_erased(self, conversation_id: str) -> bool:
        """True for a conversation that was erased. Raises `DataError` where that cannot be told."""
        ...
