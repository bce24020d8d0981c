"""An S3 server on loopback, for the tests that need an object store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import pytest
import s3fs
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
