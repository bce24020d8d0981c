"""Erasure of a user or a conversation: from the log, and from every copy that retraining has made.

The command `grpo erase`, `ErasableLog.erase` and the server's DELETE all call the function here.

    erasures/ID.json           digests of what was erased, which readers, servers and mirrors of the log obey
    erasures/receipts/ID.json  what was removed: counts by place, digests of artifacts, but no name or conversation id

The receipt is written with the document. The attempt that removes the last copy completes it.

Servers that write to the log see a new document within a second, and end their turns in progress of the users and
conversations that it names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from grpo.artifacts import ArtifactStore
from grpo.errors import ConfigError, GRPOError, StorageError
from grpo.log.compaction import erase_records
from grpo.log.copies import ErasedCopy, Mentions, erase_from_home, erase_from_store, forgetting, stores_in
from grpo.log.folder import SEGMENTS, ServedLog, name_digest
from grpo.log.receipt import ErasureReceipt, ReceiptFile
from grpo.log.records import Erasure
from grpo.log.salt import SALT, hash_user, read_salt
from grpo.log.writer import ServingLog
from grpo.serving.mirror.mlflow_copies import (
    erase_from_mlflow,
    mlflow_errors,
    registered_stores,
    tracking_address,
    versions_trained_on,
)
from grpo.storage.home import home as default_home
from grpo.storage.moved_stores import present_address

_WAIT_S = 30.0


def erase(
    folder: Path,
    *,
    user: str | None = None,
    conversation_id: str | None = None,
    home: Path | None = None,
    stores: Sequence[str] = (),
    ended: int = 0,
    wait_s: float = _WAIT_S,
) -> ErasureReceipt | None:
    """Erase a user, by the name in requests, or one conversation. None if nothing names it and nothing ever did.

    If the subject was erased before and nothing new names it, its earlier receipt is returned. If an earlier attempt
    failed, it left an incomplete receipt, which this one continues.

    `folder` is the log's folder, and `home` the folder of the runs (GRPO_HOME by default). `stores` are addresses of
    artifact stores, in addition to the stores of the home and of registered versions. `ended` is the number of turns
    that the caller has ended. Copies that earlier erasures have left are erased too.

    Raises `ConfigError` if the folder has no log, and `StorageError` if something could not be erased. The erasure must
    then be repeated, and continues where it failed.
    """
    if (user is None) == (conversation_id is None) or not (user or conversation_id):
        raise ConfigError("erase a user by its name, or one conversation by its id. Name one of the two")
    if not (folder / SEGMENTS).is_dir():
        raise ConfigError(f"{folder} is not the folder of a serving log. Name the `log` of `grpo serve`")
    hashed = None
    if user is not None and (folder / SALT).exists():
        hashed = hash_user(read_salt(folder), user)
    if hashed is None and conversation_id is None:
        return None  # a log without a salt has no user
    subject = Erasure(
        time=datetime.now(UTC),
        users=frozenset([name_digest(hashed)] if hashed else []),
        conversations=frozenset([name_digest(conversation_id)] if conversation_id else []),
    )
    receipt = ReceiptFile(folder, subject)
    receipt.add_ended(ended)
    erase_records(folder, user=hashed, conversation_id=conversation_id, wait_s=wait_s, note=receipt.set_records)
    erasures = [*ServedLog(folder).erasures(), subject]
    digests = frozenset(digest for erasure in erasures for digest in erasure.conversations)
    try:
        with mlflow_errors():
            versions, skipped = _erase_copies(folder, digests, home or default_home(), stores, receipt)
    except (GRPOError, OSError) as error:
        raise StorageError(f"not every copy is erased: {error}. Remove the cause, and erase again") from error
    return receipt.complete(versions, skipped)


class ErasableLog(ServingLog):
    """Serving log of a server, which erases a user or a conversation with all copies.

    The copies are those that runs in the folder `home` made, by default GRPO_HOME.
    """

    def __init__(self, folder: Path, *, retention_days: int | None = None, home: Path | None = None) -> None:
        super().__init__(folder, retention_days=retention_days)
        self._home = home

    async def erase(
        self, *, user: str | None = None, conversation_id: str | None = None, ended: int = 0
    ) -> ErasureReceipt | None:
        """Erase a user, by name, or a conversation, with all copies. See `erase`."""
        try:
            return await asyncio.to_thread(
                erase, self.folder, user=user, conversation_id=conversation_id, home=self._home, ended=ended
            )
        finally:
            await asyncio.to_thread(self.publish_erasures)


def _erase_copies(
    folder: Path, digests: frozenset[str], home: Path, stores: Sequence[str], receipt: ReceiptFile
) -> tuple[list[str], list[str]]:
    """Erase all copies of these conversations.

    Returns the versions that were trained on them, and the stores that were not searched.
    """
    if not digests:
        return [], []
    if not home.is_dir():
        raise StorageError(
            f"the home {home} is not a folder, so that no copies of the conversations were searched. Set GRPO_HOME to "
            "the home of the runs"
        )
    tracking_uri, mentions = tracking_address(home), Mentions(digests)
    addresses = {*stores_in(home), *stores}
    registered: set[str] = set()
    skipped: list[str] = []
    failed: list[str] = []

    def attempt(place: str, work: Callable[[], None], remedy: str = "") -> None:
        """Do the work of one place. If it fails, the other places are still searched."""
        try:
            work()
        except Exception as error:
            failed.append(f"{place} was not searched: {error}{remedy}")

    def find_registered() -> None:
        stores_of_versions, unsigned = registered_stores(str(tracking_uri))
        registered.update(stores_of_versions)
        skipped.extend(f"the store of {version}, which this home has not signed" for version in unsigned)

    if tracking_uri is not None:
        attempt("MLflow", find_registered)
    answers = not failed  # otherwise MLflow's client would ask it for minutes
    addresses |= registered
    for address in sorted({*addresses, *map(present_address, addresses)}):
        if "://" in address or Path(address).is_dir():
            attempt(
                f"the store {address}",
                lambda address=address: _note(erase_from_store(ArtifactStore(address), mentions), receipt),  # type: ignore[misc]
                forgetting(home, address),
            )
        elif address in registered and address not in stores:  # a version of another machine may have its store there
            skipped.append(f"the store {address}")
        elif address != str(home / "artifacts") and present_address(address) == address:
            failed.append(
                f"the store {address} was not searched, because the folder does not exist. Mount its disk, or correct "
                f"its name{forgetting(home, address)}"
            )
    own = partial(erase_from_home, home, mentions, erased=receipt.artifacts, log=folder)
    attempt(f"the home {home}", lambda: _note(own(), receipt))
    if tracking_uri is not None and answers:
        attempt("MLflow", lambda: _note(erase_from_mlflow(tracking_uri, mentions, digests), receipt))
    if failed:
        raise StorageError("; ".join(failed))
    return ([] if tracking_uri is None else versions_trained_on(tracking_uri, receipt.artifacts)), skipped


def _note(copies: Iterator[ErasedCopy], receipt: ReceiptFile) -> None:
    """Erase copies, and add the erased ones to the receipt, also if an error stops the erasure."""
    erased: list[ErasedCopy] = []
    try:
        erased.extend(copies)
    finally:
        receipt.add_copies(erased)
