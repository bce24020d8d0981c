"""Small JSON documents by name beside the artifacts of a store: results of stages, references to checkpoints.

A document carries a digest of its name and content: one that was changed, truncated or copied to another name is
refused. Only JSON is read.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel, ConfigDict

from grpo.errors import ArtifactError
from grpo.storage.files import write_atomically
from grpo.storage.objects import ObjectFolder, open_uri

_MOST_BYTES = 64 * 2**20
"""Maximum size; a larger file was not written by this module."""


class Document(BaseModel):
    """Base of immutable documents; unknown fields are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class DocumentStore:
    """JSON documents of one store, local or in an object store."""

    def __init__(self, uri: str) -> None:
        file_system, root = open_uri(uri)
        self._root = root.rstrip("/")
        self._objects = None if isinstance(file_system, LocalFileSystem) else ObjectFolder(file_system, self._root)

    def read(self, name: str) -> Any:
        """Read the document `name`; None for a missing one.

        Raises `ArtifactError` for one that fails its digest.
        """
        content = self._bytes(name)
        if content is None:
            return None
        try:
            envelope = json.loads(content)
            document, digest = envelope["document"], envelope["sha256"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ArtifactError(f"{self.address(name)} is damaged: it is not a record of this store") from error
        if digest != _digest(name, document):
            raise ArtifactError(f"{self.address(name)} is damaged: its content is not what its digest names")
        return document

    def write(self, name: str, document: Any) -> None:
        """Write the document `name` atomically."""
        text = json.dumps({"sha256": _digest(name, document), "document": document}, indent=1)
        if self._objects is not None:
            self._objects.write(f"{name}.json", text.encode())
        else:
            write_atomically(Path(self._root) / f"{name}.json", text)

    def remove(self, name: str) -> None:
        """Remove the document `name`, if it exists."""
        if self._objects is not None:
            self._objects.remove(f"{name}.json")
        else:
            (Path(self._root) / f"{name}.json").unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        """Names of the documents below a folder, sorted."""
        if self._objects is not None:
            paths = list(self._objects.etags(folder))
        else:
            top = Path(self._root) / folder
            paths = [str(path.relative_to(top)) for path in top.rglob("*.json")]
        return sorted(f"{folder}/{path.removesuffix('.json')}" for path in paths if path.endswith(".json"))

    def address(self, name: str) -> str:
        """Path or URI of the document `name`, for messages."""
        return f"{self._objects.uri if self._objects else self._root}/{name}.json"

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


def _digest(name: str, document: Any) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()
