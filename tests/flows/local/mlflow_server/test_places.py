"""Places of files that a client of MLflow may name, by the root of the server."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from grpo_local.mlflow_server import places as checks
from grpo_local.mlflow_server.places import is_below, is_place


@pytest.mark.parametrize(
    ("root", "place", "below"),
    [
        ("file:///runs/mlartifacts", "file:///runs/mlartifacts/a", True),
        ("file:///runs/mlartifacts", "/runs/mlartifacts/a", True),
        ("file:///runs/mlartifacts", "file:///runs/mlartifacts", False),
        ("file:///runs/mlartifacts", "file:///runs/mlartifacts2/a", False),
        ("file:///runs/mlartifacts", "mlflow-artifacts:/a", True),
        ("file:///runs/mlartifacts", "mlflow-artifacts://evil.example/a", False),
        ("s3://bucket", "s3://bucket/a", True),
        ("s3://bucket", "s3://other/a", False),
        ("s3://bucket/", "s3://bucket", False),
        ("mlflow-artifacts:/", "mlflow-artifacts:/a", True),
        ("mlflow-artifacts:/team", "mlflow-artifacts:/team/a", True),
        ("mlflow-artifacts:/team", "mlflow-artifacts:/a", False),
        ("mlflow-artifacts://host:5000/x", "mlflow-artifacts://host:5000/x/a", True),
    ],
)
def test_a_place_is_below_the_root_of_the_server(root: str, place: str, below: bool):
    """A bucket is a root as a folder is; the folder that a server proxies is one as well, without a host."""
    assert is_place(root)
    assert is_below(root, place) == below


@pytest.mark.parametrize("root", ["", "mlruns", "./mlruns", "s3:bucket", "file:///a%2fb%25", "/a;b"])
def test_a_root_that_programs_read_in_different_ways_is_none(root: str):
    """The server does not start with it; otherwise it would refuse every place."""
    assert not is_place(root)


def test_files_that_arrive_at_once_share_the_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """100 bytes are left beyond what stays free. While 60 arrive, 60 more are refused and 40 are taken."""
    usage = shutil.disk_usage(tmp_path)._replace(free=checks.KEPT_FREE + 100)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)

    async def statuses() -> list[int]:
        arrived = asyncio.Event()

        async def server(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"].endswith("slow"):
                await arrived.wait()
            await Response(status_code=200)(scope, receive, send)

        places = checks.PlaceMiddleware(server, "mlflow-artifacts:/", tmp_path)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(places), base_url="http://mlflow")

        async def put(name: str, length: int) -> int:
            path = f"/api/2.0/mlflow-artifacts/artifacts/{name}"
            return (await client.put(path, content=b"x" * length)).status_code

        slow = asyncio.ensure_future(put("slow", 60))
        await asyncio.sleep(0)
        while not places._arriving:
            await asyncio.sleep(0)
        others = [await put("a", 60), await put("b", 40)]
        arrived.set()
        return [*others, await slow, await put("c", 60), await put("d", 101)]

    assert asyncio.run(statuses()) == [507, 200, 200, 200, 507]
