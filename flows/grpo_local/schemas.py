"""Schema of Prefect's database."""

from __future__ import annotations

from grpo.storage.schemas import Schema, schema


def prefect_schema(uri: str) -> Schema:
    """Schema of Prefect's database. Prefect has different migrations for each kind of database."""
    kind = "sqlite" if uri.startswith("sqlite") else "postgresql"
    return schema("Prefect", uri, f"server/database/_migrations/versions/{kind}")
