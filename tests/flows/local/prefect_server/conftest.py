"""A database of Prefect's server for tests of its services."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def _own_database(tmp_path: Path) -> Iterator[None]:
    """An empty database of Prefect's, with its tables."""
    from prefect.server.database import provide_database_interface
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, temporary_settings

    url = f"sqlite+aiosqlite:///{tmp_path}/prefect.db"
    with temporary_settings({PREFECT_API_DATABASE_CONNECTION_URL: url}):
        asyncio.run(provide_database_interface().create_db())
        yield
