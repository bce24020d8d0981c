"""Registered versions by address: `models:/support-desk@champion`, or `models:/support-desk/3`."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from grpo.artifacts import Artifact
from grpo.errors import AddressError
from grpo.storage.databases import exclusive, make_tracking
from grpo.storage.documents import Document
from grpo.storage.home import home

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion as MlflowVersion

REGISTERED = "models:/"
_ADDRESS = re.compile(r"^models:/(?P<name>\w[\w.-]*)(@(?P<alias>[\w.-]+)|/(?P<version>[0-9]{1,9}))$")
"""A version number has at most nine digits, as databases store it."""


class ModelVersion(Document):
    """A registered model version."""

    name: str
    version: int
    run_id: str
    tags: dict[str, str]

    @property
    def address(self) -> str:
        """Address by number, which always names this version."""
        return f"{REGISTERED}{self.name}/{self.version}"

    @property
    def checkpoint(self) -> Artifact:
        """Registered checkpoint; `AddressError` for a version that was not registered by a run."""
        try:
            return Artifact(uri=self.tags["checkpoint_uri"], sha256=self.tags["checkpoint_sha256"], kind="checkpoint")
        except KeyError as error:
            raise AddressError(
                f"{self.name} version {self.version} has no tag {error}: no run of this pipeline registered it"
            ) from error


def tracking_uri() -> str:
    """Address of the registry: MLFLOW_TRACKING_URI, or the one of this machine."""
    return os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{home()}/mlflow.db")


def open_client(uri: str) -> MlflowClient:
    """Open MLflow's client of a registry; one process at a time creates the tables of a database."""
    import mlflow
    from mlflow import MlflowClient

    mlflow.set_tracking_uri(uri)
    with exclusive(uri):
        make_tracking(uri)
        client = MlflowClient(uri)
        client.search_experiments(max_results=1)
    return client


def registered_version(address: str) -> ModelVersion:
    """Version at an address in the registry of this process. Raises as `resolve_version`."""
    return resolve_version(lambda: open_client(tracking_uri()), address)


def resolve_version(connect: Callable[[], MlflowClient], address: str) -> ModelVersion:
    """Version at `models:/NAME@alias` or `models:/NAME/3`; `AddressError` for a missing one.

    The registry is opened for an address alone, since opening one on a new machine creates it.
    """
    if (parts := _ADDRESS.match(address)) is None:
        raise AddressError(f"{address!r} is not the address of a model; write models:/NAME@champion or models:/NAME/3")
    client = connect()
    name, alias, number = parts["name"], parts["alias"], parts["version"]
    version = version_by_alias(client, name, alias) if alias is not None else _version_by_number(client, name, number)
    if version is None:
        raise AddressError(
            f"no model at {address} in the registry {client.tracking_uri}; `grpo models` lists those that are there"
        )
    return version


def version_by_alias(client: MlflowClient, name: str, alias: str) -> ModelVersion | None:
    """Version of a model with an alias; None for a missing one."""
    from mlflow.exceptions import MlflowException

    try:
        return as_version(client.get_model_version_by_alias(name, alias))
    except MlflowException as error:
        if is_absent(error):
            return None
        raise


def as_version(version: MlflowVersion) -> ModelVersion:
    """Version of MLflow as a document."""
    return ModelVersion(
        name=str(version.name), version=int(version.version), run_id=str(version.run_id), tags=dict(version.tags)
    )


def is_absent(error: Exception) -> bool:
    """Distinguish an MLflow error about a missing object from one about the connection."""
    code, text = getattr(error, "error_code", ""), str(error)
    return code == "RESOURCE_DOES_NOT_EXIST" or (code == "INVALID_PARAMETER_VALUE" and "not found" in text)


def _version_by_number(client: MlflowClient, name: str, number: str) -> ModelVersion | None:
    from mlflow.exceptions import MlflowException

    try:
        return as_version(client.get_model_version(name, number))
    except MlflowException as error:
        if is_absent(error):
            return None
        raise
