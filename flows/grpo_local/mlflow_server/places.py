"""Bounds on what a client of MLflow's server sends: the size of a body, and the place that it names for files.

MLflow lets a client choose where the files of an experiment, of a version or of a trace are. The server, the runs and
`grpo erase` then read, write and delete there as the user who owns them, so that MLflow's login would be enough to put
a file into any folder. Therefore only places below the server's own root of artifacts are accepted here.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grpo.storage.files import nearest_existing

MOST_BYTES = 64 * 2**20
"""Largest body, such as a batch of spans, because MLflow keeps it in memory. A file that states its length goes to disk
as it arrives and may be larger."""
MOST_QUERY = 64 * 2**10
"""Largest query of GraphQL. The pages send a few kB. MLflow parses a query before it bounds it, and 5 MB keep a thread
for over a minute."""
KEPT_FREE = 2**30
"""Bytes of the disk that uploads leave free, because the registry, the log and Prefect write to the same disks."""
_FILE = re.compile(r"/(?:ajax-)?api/2\.0/mlflow-artifacts/artifacts/.+")
_EXPERIMENT = re.compile(r"/(?:ajax-)?api/[0-9.]+/mlflow/experiments/create")
_VERSION = re.compile(r"/(?:ajax-)?api/[0-9.]+/mlflow/model-versions/create")
_TRACE = re.compile(r"/(?:ajax-)?api/[0-9.]+/mlflow/traces(?:/.*)?")
_SPANS, _GRAPHQL = "/v1/traces", "/graphql"
_LOCATIONS = frozenset({"mlflow.artifactLocation", "mlflow.trace.archiveLocation"})
"""Tags of a trace with the place of its files, which MLflow itself sets."""
_TAG_OF_TRACE = "mlflow.traceTag."
"""Prefix of attributes of a span that become tags of its trace."""
_PROXIED = "mlflow-artifacts"
_REFERENCES = ("runs", "models")
"""Schemes of sources that name a run or a logged model. MLflow looks up their places."""
_PROMPTS = ("prompt-template", "dummy-source")
"""Sources of prompts in MLflow's registry, which have no files."""


class Refusal(Exception):
    """A request that is not forwarded."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class PlaceMiddleware:
    """ASGI middleware that refuses bodies and files that are too large, and places of files outside the server's root.

    The document that was checked is written again for MLflow, so that the two cannot read it differently.
    """

    def __init__(self, app: ASGIApp, root: str, folder: Path) -> None:
        """`root` is the address below which the server keeps files, `folder` where it writes them while they arrive."""
        self._app = app
        self._root = root
        self._folder = folder
        self._arriving = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            if scope["method"] == "PUT" and _FILE.fullmatch(scope["path"]) and (length := _stated_length(scope)):
                await self._store(length, scope, receive, send)
                return
            most = MOST_QUERY if scope["path"] == _GRAPHQL else MOST_BYTES
            body = await _read(Headers(scope=scope), receive, most)
            if scope["path"] == _SPANS:
                await run_in_threadpool(_check_spans, Headers(scope=scope), body)
            elif any(pattern.fullmatch(scope["path"]) for pattern in (_EXPERIMENT, _VERSION, _TRACE)) and body:
                body = await run_in_threadpool(self._checked, scope["path"], body)
        except Refusal as refusal:
            content = {"error_code": "INVALID_PARAMETER_VALUE", "message": str(refusal)}
            closing = {"connection": "close"} if refusal.status in (413, 507) else None
            await JSONResponse(content, status_code=refusal.status, headers=closing)(scope, receive, send)
            return
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_body() -> Message:
            return pending.pop() if pending else await receive()

        await self._app(_with_length(scope, len(body)), receive_body, send)

    async def _store(self, length: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a file if it fits on the disk together with the files that arrive now. Raises `Refusal`."""
        room = shutil.disk_usage(nearest_existing(self._folder)).free - KEPT_FREE - self._arriving
        if length > room:
            raise Refusal(
                507,
                f"the file has {length >> 20} MiB, and the server's disk has room for {max(room, 0) >> 20} MiB, "
                f"because {KEPT_FREE >> 20} MiB stay free for the registry and the log. Free space there",
            )
        self._arriving += length
        try:
            await self._app(scope, receive, send)
        finally:
            self._arriving -= length

    def _checked(self, path: str, body: bytes) -> bytes:
        """The document of a body, checked and written again. Raises `Refusal`."""
        try:
            document = json.loads(body.decode("utf-8"))
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise Refusal(400, "the body is not a JSON object in UTF-8")
        if _EXPERIMENT.fullmatch(path):
            for name in ("artifact_location", "artifactLocation"):
                self._require_below(name, document.get(name))
        elif _VERSION.fullmatch(path):
            if (source := document.get("source")) not in _PROMPTS and not _is_reference(source):
                self._require_below("source", source)
        elif (tag := _named_location(document)) is not None:
            raise _server_sets(tag)
        return json.dumps(document).encode()

    def _require_below(self, name: str, place: object) -> None:
        """Raise `Refusal` if a place is outside of the server's root. If there is none, MLflow uses its own."""
        if place and not is_below(self._root, place):
            raise Refusal(
                400,
                f"{name} is {str(place)[:200]!r}, which is not below {self._root}, where this server keeps files. "
                f"Leave it out, or name a place there or {_PROXIED}:/NAME",
            )


def is_below(root: str, place: object) -> bool:
    """True for a place below a root, or below the root that the server itself proxies (`mlflow-artifacts:/`).

    file:///runs/mlartifacts      file:///runs/mlartifacts/support    below
                                  file:///runs/mlartifacts/../store   not below, wherever it leads
    """
    if not isinstance(place, str) or (parts := _parts(place)) is None:
        return False
    scheme, host, folders = parts
    own = _parts(root)
    if scheme == _PROXIED and (own is None or own[0] != _PROXIED):
        return not host
    return (
        own is not None
        and (scheme, host) == own[:2]
        and len(folders) > len(own[2])
        and folders[: len(own[2])] == own[2]
    )


def is_place(address: str) -> bool:
    """True for an address that can be the root of a server."""
    return _parts(address) is not None


def _is_reference(source: object) -> bool:
    """True for `runs:/ID/path` and `models:/NAME/3`."""
    parts = _parts(source) if isinstance(source, str) else None
    return parts is not None and parts[0] in _REFERENCES and not parts[1]


def _parts(address: str) -> tuple[str, str, list[str]] | None:
    """Scheme, host and folders of an address. None if programs may read the address in different ways."""
    try:
        url = urlsplit(address)
    except ValueError:
        return None
    path = unquote(url.path) or ("/" if url.netloc else "")
    plain = address.isprintable() and path.isprintable() and address == address.strip()
    if not plain or url.query or url.fragment or not path.startswith("/") or re.search(r"[%\\;]", path):
        return None
    folders = path.removeprefix("/").removesuffix("/").split("/") if path != "/" else []
    if {"", ".", ".."} & set(folders):
        return None
    return url.scheme or "file", url.netloc, folders


def _named_location(document: object) -> str | None:
    """Name of a tag of a location, if it stands anywhere in a document as a name or as a value."""
    pending = [document]
    while pending:
        match pending.pop():
            case str(text) if text in _LOCATIONS:
                return text
            case dict(fields):
                pending += [*fields, *fields.values()]
            case list(items):
                pending += items
    return None


def _check_spans(headers: Headers, body: bytes) -> None:
    """Raise `Refusal` if a span sets the place of its trace, or if spans have another form than MLflow's client sends.

    MLflow also takes spans as JSON. This module does not read them, so they are not forwarded.
    """
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    if headers.getlist("content-type") != ["application/x-protobuf"]:
        raise Refusal(415, "spans are taken as application/x-protobuf only, as MLflow's client sends them")
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError:
        raise Refusal(400, "the body is not a request of OpenTelemetry") from None
    spans = (span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans)
    for attribute in (attribute for span in spans for attribute in span.attributes):
        if attribute.key.removeprefix(_TAG_OF_TRACE) in _LOCATIONS:
            raise _server_sets(attribute.key)


def _server_sets(tag: str) -> Refusal:
    return Refusal(400, f"{tag} is a tag that the server sets. Send the trace without it")


def _stated_length(scope: Scope) -> int:
    """Length of a body that its head states. 0 if it does not; such a body is read like every other."""
    headers = Headers(scope=scope)
    stated = headers.get("content-length", "")
    return int(stated) if stated.isdecimal() and "transfer-encoding" not in headers else 0


def _with_length(scope: Scope, length: int) -> Scope:
    """The request with the length of the body that replaces its own."""
    announced = Headers(scope=scope)
    if length == 0 and "content-length" not in announced and "transfer-encoding" not in announced:
        return scope
    forwarded = {**scope, "headers": list(scope["headers"])}
    headers = MutableHeaders(scope=forwarded)
    del headers["transfer-encoding"]
    headers["content-length"] = str(length)
    return forwarded


async def _read(headers: Headers, receive: Receive, most: int) -> bytes:
    """The whole body. Raises `Refusal` if it is too large, or compressed, because its size is then not known before."""
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, f"the body is compressed with {headers['content-encoding'][:40]}. Send it as it is")
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        message: dict[str, Any] = dict(await receive())
        if message["type"] == "http.disconnect":
            raise Refusal(400, "the client left before its body had arrived")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        more = message.get("more_body", False)
        if size > most:
            raise Refusal(413, f"the body has more than {most >> 10:,} KiB")
    return b"".join(chunks)
