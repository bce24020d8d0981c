"""Small JSON documents by name, in the store of the artifacts: results of stages, references to checkpoints.

They name the artifacts that stages use. They are signed (`grpo.storage.signing`), because anyone with write access to
the store can write any weights into it together with their digest. If a document was changed, truncated or copied to
another name, it is refused and its stage computes again. Only JSON is read.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel, ConfigDict

from grpo.errors import ArtifactError
from grpo.storage.files import write_atomically
from grpo.storage.objects import ObjectFolder, open_uri
from grpo.storage.signing import KEY, Unverified, sign, verify

_MOST_BYTES = 64 * 2**20
"""Maximum size. A larger file was not written by this module."""
_KIND = "store document"
_LISTED = re.compile(r"(?:[\w.]+-)?[0-9a-f]{64}")
"""Name of a listed document in its folder: the sha256 of its subject, which may follow the name of its stage."""


class Document(BaseModel):
    """Base of immutable documents. An unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DocumentStore:
    """JSON documents of one store, local or in an object store."""

    def __init__(self, uri: str) -> None:
        file_system, root = open_uri(uri)
        self._root = root.rstrip("/")
        self._objects = None if isinstance(file_system, LocalFileSystem) else ObjectFolder(file_system, self._root)

    def read(self, name: str) -> Any:
        """Read the document `name`, or return None if it is missing.

        Raises `ArtifactError` if it is not signed under this name with this process's key.
        """
        content = self._bytes(name)
        if content is None:
            return None
        try:
            signed = verify(_KIND, content.decode(errors="replace"), longest=_MOST_BYTES)
        except Unverified as error:
            if error.fault == "was signed with another key":
                remedy = f"Give all machines that share the store one {KEY}"
            else:
                remedy = f"`grpo store sign {self.uri}` signs documents of an earlier version, if you trust the store"
            raise ArtifactError(f"{self.address(name)} is damaged: it {error.fault}. {remedy}") from error
        if signed.get("name") != name:
            raise ArtifactError(f"{self.address(name)} is damaged: it was signed under another name")
        return signed["content"]

    def write(self, name: str, document: Any) -> None:
        """Sign the document `name`, and write it atomically."""
        text = sign(_KIND, {"name": name, "content": document})
        if self._objects is not None:
            self._objects.write(f"{name}.json", text.encode())
        else:
            write_atomically(Path(self._root) / f"{name}.json", text)

    def sign(self, name: str, *, dry_run: bool = False) -> bool:
        """Sign a document that an earlier version wrote, if its digest holds. Otherwise return False.

        With `dry_run` the document is not changed.
        """
        try:
            envelope = json.loads(self._bytes(name) or b"")
            document, digest = envelope["document"], envelope["sha256"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
        if digest != _digest(name, document):
            return False
        if not dry_run:
            self.write(name, document)
        return True

    def remove(self, name: str) -> None:
        """Remove the document `name`, if it exists."""
        if self._objects is not None:
            self._objects.remove(f"{name}.json")
        else:
            (Path(self._root) / f"{name}.json").unlink(missing_ok=True)

    def names(self, folder: str, *, depth: int = 1) -> list[str]:
        """Names of the documents in a folder, sorted. With `depth` 2, of the documents in its subfolders instead.

        If a file has another kind of name or is at another depth, it is not a document of this store and is left out.
        """
        if self._objects is not None:
            paths = list(self._objects.etags(folder))
        else:
            top = Path(self._root) / folder
            files = (path for path in top.glob("*/" * (depth - 1) + "*.json") if path.is_file())
            paths = [path.relative_to(top).as_posix() for path in files]
        listed = (path.removesuffix(".json") for path in paths if path.endswith(".json"))
        return sorted(
            f"{folder}/{name}"
            for name in listed
            if name.count("/") == depth - 1 and is_document_name(f"{folder}/{name}")
        )

    def address(self, name: str) -> str:
        """Path or URI of the document `name`, for messages."""
        return f"{self.uri}/{name}.json"

    @property
    def uri(self) -> str:
        """Address of the store."""
        return self._objects.uri if self._objects is not None else self._root

    def _bytes(self, name: str) -> bytes | None:
        try:
            if self._objects is not None:
                return self._objects.read(f"{name}.json")
            path = Path(self._root) / f"{name}.json"
            if path.stat().st_size > _MOST_BYTES:
                raise ArtifactError(f"{path} is damaged: more than {_MOST_BYTES >> 20} MiB")
            return path.read_bytes()
        except FileNotFoundError:
            return None


def is_document_name(name: str) -> bool:
    """True if documents of a store are named like this: a folder, and in it the digest of the document's subject."""
    return "/" in name and _LISTED.fullmatch(name.rpartition("/")[2]) is not None


def _digest(name: str, document: Any) -> str:
    """Digest that documents had before they were signed."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()
