"""An S3 server on loopback, and a store in memory that counts, for what needs an object store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import boto3
import fsspec
import pytest
import s3fs
from fsspec.implementations.memory import MemoryFileSystem
from moto.server import ThreadedMotoServer

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing-id",
    "AWS_SECRET_ACCESS_KEY": "testing-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def object_store(environment: pytest.MonkeyPatch, *, bucket: str = "grpo") -> Iterator[str]:
    """Serve S3 with one bucket, and let the environment say where; yields the address of the server."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": url}.items():
            environment.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()  # it keeps the address that it was first made with
        boto3.client("s3").create_bucket(Bucket=bucket)
        yield url
    finally:
        server.stop()
        s3fs.S3FileSystem.clear_instance_cache()


class CountingFileSystem(MemoryFileSystem):
    """A store in memory that notes what it is sent, and what it copies itself."""

    protocol = "counting"
    store: ClassVar[dict[str, Any]] = {}
    sent: ClassVar[dict[str, int]] = {}
    """Bytes of each object that was sent last, in the order of the first time."""
    copied: ClassVar[dict[str, int]] = {}

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        """Note the size of the file, and put it."""
        self.sent[rpath] = Path(lpath).stat().st_size
        super().put_file(lpath, rpath, **options)

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        """Note the size of the content, and write it."""
        self.sent[path] = len(value)
        super().pipe_file(path, value, **options)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        """Note the size of the object, and copy it."""
        self.copied[path2] = self.info(path1)["size"]
        super().cp_file(path1, path2, **options)


def counting_store() -> str:
    """Address of an empty store that counts."""
    fsspec.register_implementation("counting", CountingFileSystem, clobber=True)
    for notes in (CountingFileSystem.sent, CountingFileSystem.copied, CountingFileSystem.store):
        notes.clear()
    return "counting://artifacts"
