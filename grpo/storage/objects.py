"""A folder of an object store: uploads in order, downloads by name, and errors that say what to do.

Credentials come from the environment alone (for S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, or a
role of the machine), so that no address, config, cache key or log holds one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec

from grpo.errors import ConfigError, StorageError
from grpo.storage.credentials import refuse_credentials

_EXTRAS = {"s3": "s3", "s3a": "s3"}
"""Extra of this package that reads an address of this protocol."""
_CHANGES = ("ETag", "etag", "LastModified", "mtime", "created")
"""What file systems call the mark that is another one once an object was written again."""
_BUSY = (errno.EIO, errno.EBUSY, errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT, errno.EHOSTUNREACH)


def open_uri(uri: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it.

    Raises `ConfigError` for an address that holds credentials, is of no known kind, or needs a package that is missing.
    """
    refuse_credentials(uri)
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        refuse_credentials(os.environ.get(name, ""), name=name)
    try:
        return fsspec.core.url_to_fs(uri, use_listings_cache=False)
    except ImportError as error:
        extra = _EXTRAS.get(urlsplit(uri).scheme)
        remedy = f"pip install 'grpo[{extra}]'" if extra else "install it"
        raise ConfigError(f"store {uri} needs a package that is not installed ({error}); {remedy}") from error
    except ValueError as error:
        raise ConfigError(f"store {uri} is no address that fsspec knows: {error}") from error


class ObjectFolder:
    """Objects below one address.

    Raises `ConnectionError` while the store cannot be reached, which a second try can mend, and `StorageError` when it
    refuses the credentials or has no such bucket.
    """

    def __init__(self, file_system: Any, root: str) -> None:
        self._fs = file_system
        self.uri = str(file_system.unstrip_protocol(root))
        self._root = root

    def etags(self, name: str) -> dict[str, str]:
        """A mark for each object at or below `name`, by its path below it; another mark is another content."""
        top = f"{self._root}/{name}"
        with self._errors():
            found = self._fs.find(top, detail=True)
        return {path[len(top) :].lstrip("/"): _etag(info) for path, info in sorted(found.items())}

    def read(self, name: str) -> bytes:
        """The content of one object. Raises `FileNotFoundError` when there is none."""
        with self._errors():
            return bytes(self._fs.cat_file(f"{self._root}/{name}"))

    def download(self, name: str, files: Sequence[str], folder: Path) -> None:
        """Fetch these objects below `name` into a folder. Raises `FileNotFoundError` when one is not there."""
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
        with self._errors():
            self._fs.get([f"{self._root}/{name}/{file}" for file in files], [str(folder / file) for file in files])

    def download_file(self, name: str, place: Path) -> None:
        """Fetch one object. Raises `FileNotFoundError` when it is not there."""
        with self._errors():
            self._fs.get_file(f"{self._root}/{name}", str(place))

    def upload(self, folder: Path, name: str, files: Sequence[str], *, last: str) -> None:
        """Store the files of a folder below `name`, and then the one that says that they are all there."""
        top = f"{self._root}/{name}"
        with self._errors(writing=True):
            for file in files:
                self._fs.put_file(str(folder / file), f"{top}/{file}")
            self._fs.put_file(str(folder / last), f"{top}/{last}")

    def upload_file(self, path: Path, name: str) -> None:
        """Store one file; an object store shows it whole or not at all."""
        with self._errors(writing=True):
            self._fs.put_file(str(path), f"{self._root}/{name}")

    def write(self, name: str, content: bytes) -> None:
        """Store one small object."""
        with self._errors(writing=True):
            self._fs.pipe_file(f"{self._root}/{name}", content)

    def remove(self, name: str) -> None:
        """Remove the object at `name` and all objects below it, where there are any."""
        with self._errors(), suppress(FileNotFoundError):
            self._fs.rm(f"{self._root}/{name}", recursive=True)

    @contextmanager
    def _errors(self, *, writing: bool = False) -> Iterator[None]:
        unreachable, nameless = _protocol_errors(self._fs)
        try:
            yield
        except FileNotFoundError as error:
            if writing:
                raise StorageError(
                    f"cannot write {self.uri}: {error}; create the bucket, or correct `store`"
                ) from error
            raise
        except PermissionError as error:
            raise StorageError(
                f"{self.uri} is refused: {error}; check the credentials in the environment and what they may do"
            ) from error
        except nameless as error:
            raise StorageError(
                f"{self.uri} cannot be opened: {error}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from error
        except unreachable as error:
            raise ConnectionError(self._away(error)) from error
        except OSError as error:
            if error.errno in _BUSY:
                raise ConnectionError(self._away(error)) from error
            raise

    def _away(self, error: BaseException) -> str:
        endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")).hostname
        place = f" at {endpoint}" if endpoint else ""
        return (
            f"{self.uri}{place} cannot be reached ({type(error).__name__}); check that the object store runs, the "
            "network, and AWS_ENDPOINT_URL"
        )


def _etag(info: dict[str, Any]) -> str:
    return " ".join(str(info[key]) for key in ("size", *_CHANGES) if info.get(key) is not None)


def _protocol_errors(
    file_system: Any,
) -> tuple[tuple[type[BaseException], ...], tuple[type[BaseException], ...]]:
    """Errors of this kind of store: it cannot be reached; it is asked by nobody in particular."""
    protocols = (file_system.protocol,) if isinstance(file_system.protocol, str) else file_system.protocol
    if "s3" not in protocols:
        return (), ()
    from botocore import exceptions

    away = (exceptions.ConnectionError, exceptions.HTTPClientError)
    return away, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)
