"""Folder of an object store: ordered uploads, downloads by name, and errors with remedies.

Credentials come only from the environment (for S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, or a
role of the machine), so that URIs, configs, cache keys and logs never contain them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec

from grpo.errors import ConfigError, StorageError, install_command
from grpo.storage.credentials import refuse_credentials

_EXTRAS = {"s3": "s3", "s3a": "s3"}
"""Extra of this package by protocol."""
_CHANGES = ("ETag", "etag", "LastModified", "mtime", "created")
"""Names under which file systems report a version of an object."""
_BUSY = (errno.EIO, errno.EBUSY, errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT, errno.EHOSTUNREACH)


def open_uri(uri: str) -> tuple[Any, str]:
    """Return the file system of a URI, and the path in it.

    Raises `ConfigError` if the URI has credentials or an unknown protocol, or needs a package that is missing.
    """
    refuse_credentials(uri)
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        refuse_credentials(os.environ.get(name, ""), name=name)
    try:
        return fsspec.core.url_to_fs(uri, use_listings_cache=False)
    except ImportError as error:
        extra = _EXTRAS.get(urlsplit(uri).scheme)
        remedy = f"Call {install_command(extra)}" if extra else "Install it"
        raise ConfigError(f"store {uri} needs a package that is not installed ({error}). {remedy}") from error
    except ValueError as error:
        raise ConfigError(f"store {uri} is not an address that fsspec knows: {error}") from error


class ObjectFolder:
    """Objects below one URI.

    Raises `ConnectionError` if the store cannot be reached, which a retry can fix, and `StorageError` if it refuses the
    credentials or the bucket is missing.
    """

    def __init__(self, file_system: Any, root: str) -> None:
        self._fs = file_system
        self.uri = str(file_system.unstrip_protocol(root))
        self._root = root

    def etags(self, name: str) -> dict[str, str]:
        """ETags of the objects at or below `name`, by relative path. A different ETag means different content."""
        top = f"{self._root}/{name}"
        with self._errors():
            objects = self._fs.find(top, detail=True)
        return {path[len(top) :].lstrip("/"): _etag(info) for path, info in sorted(objects.items())}

    def read(self, name: str) -> bytes:
        """Read one object. Raises `FileNotFoundError` if it is missing."""
        with self._errors():
            return bytes(self._fs.cat_file(f"{self._root}/{name}"))

    def download(self, name: str, files: Sequence[str], folder: Path) -> None:
        """Download these objects below `name` into a folder. Raises `FileNotFoundError` if one is missing."""
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
        with self._errors():
            self._fs.get([f"{self._root}/{name}/{file}" for file in files], [str(folder / file) for file in files])

    def download_file(self, name: str, place: Path) -> None:
        """Download one object. Raises `FileNotFoundError` if it is missing."""
        with self._errors():
            self._fs.get_file(f"{self._root}/{name}", str(place))

    def upload(self, folder: Path, name: str, files: Sequence[str], *, last: str, sources: Mapping[str, str]) -> None:
        """Upload the files of a folder below `name`, and then `last`. If `last` is present, the others are complete.

        `sources` are objects with the content of some of the files. The store copies them, so that nothing is sent.
        """
        top = f"{self._root}/{name}"
        with self._errors(writing=True):
            for file in files:
                if file in sources:
                    # another run has removed it in this moment, or the store cannot copy, e.g. over SFTP
                    with suppress(FileNotFoundError, NotImplementedError):
                        self._fs.cp_file(f"{self._root}/{sources[file]}", f"{top}/{file}")
                        continue
                self._fs.put_file(str(folder / file), f"{top}/{file}")
            self._fs.put_file(str(folder / last), f"{top}/{last}")

    def upload_file(self, path: Path, name: str) -> None:
        """Upload one file. Object stores write it atomically."""
        with self._errors(writing=True):
            self._fs.put_file(str(path), f"{self._root}/{name}")

    def write(self, name: str, content: bytes) -> None:
        """Write one small object."""
        with self._errors(writing=True):
            self._fs.pipe_file(f"{self._root}/{name}", content)

    def remove(self, name: str) -> None:
        """Remove the object at `name` and all objects below it, if any."""
        with self._errors(), suppress(FileNotFoundError):
            self._fs.rm(f"{self._root}/{name}", recursive=True)

    @contextmanager
    def _errors(self, *, writing: bool = False) -> Iterator[None]:
        unreachable, no_credentials = _protocol_errors(self._fs)
        try:
            yield
        except FileNotFoundError as error:
            if writing:
                raise StorageError(
                    f"cannot write {self.uri}: {error}. Create the bucket, or correct `store`"
                ) from error
            raise
        except PermissionError as error:
            raise StorageError(
                f"{self.uri} is refused: {error}. Check the credentials in the environment and what they may do"
            ) from error
        except no_credentials as error:
            raise StorageError(
                f"{self.uri} cannot be opened: {error}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from error
        except unreachable as error:
            raise ConnectionError(self._unreachable(error)) from error
        except OSError as error:
            if error.errno in _BUSY:
                raise ConnectionError(self._unreachable(error)) from error
            raise

    def _unreachable(self, error: BaseException) -> str:
        endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")).hostname
        place = f" at {endpoint}" if endpoint else ""
        return (
            f"{self.uri}{place} cannot be reached ({type(error).__name__}). Check that the object store runs, the "
            "network, and AWS_ENDPOINT_URL"
        )


def _etag(info: dict[str, Any]) -> str:
    return " ".join(str(info[key]) for key in ("size", *_CHANGES) if info.get(key) is not None)


def _protocol_errors(
    file_system: Any,
) -> tuple[tuple[type[BaseException], ...], tuple[type[BaseException], ...]]:
    """Error types of a protocol: unreachable store, missing credentials."""
    protocols = (file_system.protocol,) if isinstance(file_system.protocol, str) else file_system.protocol
    if "s3" not in protocols:
        return (), ()
    from aiohttp import ClientError
    from botocore import exceptions

    unreachable = (exceptions.ConnectionError, exceptions.HTTPClientError, ClientError)  # the last one: a reply was cut
    return unreachable, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)
