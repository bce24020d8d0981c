"""Places of files that a client of MLflow may name, by the root of the server."""

from __future__ import annotations

import pytest

from grpo_flows.local.tracking_places import is_below, is_place


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
