"""A PostgreSQL cluster for tests of what servers share; each test has a database of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.e2e.postgres import Cluster, postgres

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with postgres() as running:
        yield running


def new_database(cluster: Cluster) -> str:
    """URL of an empty database."""
    return cluster.database(f"shared_{next(_NUMBERS)}")
