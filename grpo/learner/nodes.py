"""The other nodes of distributed updates: each watches a shared folder, and joins every update that appears in it.

All nodes see the folder at the same path, which `GRPO_NODES` names. The first node runs the train stage. For each
update it makes a subfolder with the request, and removes it when the update has ended. torchrun uses a file in the
subfolder for its rendezvous, by which the nodes find each other and are counted.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
from pydantic import BaseModel, ValidationError

from grpo.errors import ConfigError, StorageError
from grpo.learner.distributed import (
    ERROR,
    REQUEST,
    UPDATE_PREFIX,
    ErrorReport,
    UpdateRequest,
    check_devices,
)
from grpo.learner.worker_group import kill_tree, start_torchrun
from grpo.storage.files import write_atomically

_POLL_S = 0.5
"""Interval at which the folder of the nodes is searched."""


def follow(nodes: Path, *, sources: str) -> Iterator[str]:
    """Join every update in the folder of the nodes, one after the other, without end. Yields a line for each event.

    `sources` is the digest of this node's sources. Updates of nodes with other sources are refused. If the network
    disk of the folder fails, the node waits, because it would otherwise be missing in all later updates.
    """
    seen: set[str] = set()
    failure = ""
    while True:
        try:
            requests = [path for path in nodes.glob(f"{UPDATE_PREFIX}*/{REQUEST}") if path.parent.name not in seen]
            if requests:
                update = max(requests, key=_time).parent  # older ones are of killed runs
                if not failure:
                    yield f"{update.name}: joining"
                yield f"{update.name}: {join(update, sources=sources)}"
                seen |= {path.parent.name for path in requests}
            failure = ""
        except OSError as error:
            requests = []
            if str(error) != failure:
                failure = str(error)
                yield f"{nodes} is tried again: {failure}"
        if not requests:
            time.sleep(_POLL_S)


def join(update: Path, *, sources: str) -> str:
    """Run this node's processes of an update until they end or its folder is gone, and return how it ended.

    If this node cannot take part, it reports the reason to the first node, which ends the update with it. Raises
    `OSError` if the request cannot be read now.
    """
    try:
        request = _read_request((update / REQUEST).read_bytes(), sources)
    except FileNotFoundError:
        return "over before this node joined"
    except ConfigError as error:
        report = ErrorReport(kind="ConfigError", message=f"node {socket.gethostname()}: {error}")
        with suppress(StorageError):  # the first node then only notices that this one does not come
            write_atomically(update / ERROR, report.model_dump_json())
        return f"refused: {error}"
    with start_torchrun(request, update, stderr=None) as torchrun:
        while torchrun.poll() is None:
            if _is_over(update):
                kill_tree(psutil.Process(torchrun.pid))
                return "over"
            time.sleep(_POLL_S)
    return "ended" if torchrun.returncode == 0 else f"failed, torchrun ended with {torchrun.returncode}"


def _is_over(update: Path) -> bool:
    """True if the first node has removed the update. An update whose folder cannot be looked at may go on."""
    try:
        (update / REQUEST).stat()
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ESTALE)
    return False


class _Sources(BaseModel):
    """The part of a request that every version of this project reads."""

    sources: str | None = None


def _read_request(document: bytes, sources: str) -> UpdateRequest:
    """Read a request. Raises `ConfigError` if this node has other sources or does not see the checkpoint.

    The sources are compared first, because another version may have other settings.
    """
    try:
        if _Sources.model_validate_json(document).sources != sources:
            raise ConfigError(
                "this node has other sources of grpo than the first node. Install the same version on both"
            )
        request = UpdateRequest.model_validate_json(document)
    except ValidationError as error:
        raise ConfigError(
            f"{REQUEST} of the update is damaged: {error.errors()[0]['msg']}. Check the file system"
        ) from None
    check_devices(request.settings)
    missing = [path for path in (*request.scored, request.parent, request.base) if not path.exists()]
    if missing:
        raise ConfigError(
            f"{missing[0]} does not exist on this node. Set store to a folder that all nodes see at the same path"
        )
    return request


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it is over, or its network disk fails
        return 0.0
