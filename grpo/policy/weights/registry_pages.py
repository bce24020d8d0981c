"""Complete results of MLflow's searches.

Each search of MLflow returns one page and the token of the next page, and a registry may have more entries than fit on
a page. A caller that reads only the first page would not notice this: an erasure would miss versions, and a move would
not compare all of them. Search with the functions of this module, unless one result is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

PAGE = 1000
"""Entries per request, at most 1,000, because MLflow refuses more for registered models."""


def all_pages(search: Callable[..., Any], *arguments: Any, page: int | None = None, **options: Any) -> Iterator[Any]:
    """Call a search of MLflow for one page after another, and yield the entries of all pages.

    `search` gets the arguments and options, and in addition `max_results` and `page_token`. `page` is the number of
    entries per request, by default `PAGE`.
    """
    token = None
    while True:
        entries = search(*arguments, max_results=page or PAGE, page_token=token, **options)
        yield from entries
        if not (token := entries.token):
            return


def all_versions(client: MlflowClient, condition: str | None = None) -> Iterator[ModelVersion]:
    """Versions that fulfil a condition, by model, and the newest of each model first. Nothing about them is verified.

    The order does not depend on the time of the last update. Otherwise a version that is updated while the pages are
    read would move to a page that was already read, and would be left out.
    """
    return all_pages(client.search_model_versions, condition, order_by=["name ASC", "version_number DESC"])


def all_models(client: MlflowClient) -> Iterator[RegisteredModel]:
    """Registered models by name."""
    return all_pages(client.search_registered_models)
