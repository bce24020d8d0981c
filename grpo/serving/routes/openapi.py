"""OpenAPI document of the server, with the schemas of request bodies.

FastAPI does not know these schemas, because the routes read the bodies from bytes themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_SCHEMAS = "#/components/schemas/"


def describe_bodies(app: FastAPI, bodies: Mapping[str, type[BaseModel]]) -> None:
    """Add the schema of the body of `POST path` to `/openapi.json`, for each path of `bodies`."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = FastAPI.openapi(app)
            models = [(model, "validation") for model in bodies.values()]
            _, definitions = models_json_schema(models, ref_template=f"{_SCHEMAS}{{model}}")  # type: ignore[arg-type]
            schema.setdefault("components", {}).setdefault("schemas", {}).update(definitions.get("$defs", {}))
            for path, model in bodies.items():
                content = {"application/json": {"schema": {"$ref": f"{_SCHEMAS}{model.__name__}"}}}
                schema["paths"][path]["post"]["requestBody"] = {"required": True, "content": content}
        return app.openapi_schema or {}

    app.openapi = document  # type: ignore[method-assign]
