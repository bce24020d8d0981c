"""Calls that MLflow's server answers, held against all routes of the installed MLflow."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from grpo_local.mlflow_server.calls import is_listed, listed_calls

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of its own imports
_API = "/api/3.0/mlflow"
REFUSED = frozenset(
    {
        # assistant: runs shell commands and installs files, for whatever answers at an address that a client names
        "/api/3.0/mlflow/assistant",
        # gateway: keeps keys of providers, and sends what a client says to any address
        "/api/3.0/mlflow/gateway",
        "/api/2.0/mlflow/gateway-proxy",
        "/gateway",
        # jobs and what starts them: models as judges, code of scorers, optimization of prompts
        "/api/3.0/jobs",
        "/api/3.0/mlflow/jobs",
        "/api/3.0/mlflow/scorer",
        "/api/3.0/mlflow/scorers",
        "/api/3.0/mlflow/genai",
        "/api/3.0/mlflow/issues",
        "/api/3.0/mlflow/prompt-optimization",
        "/api/2.0/mlflow/runs/create-promptlab-run",
        # requests to addresses that a client names
        "/api/2.0/mlflow/webhooks",
        "/api/3.0/mlflow/mcp-servers",
        # files of runs written by the server itself; clients write them under mlflow-artifacts or themselves
        "/api/2.0/mlflow/upload-artifact",
        # other people's records, samples and usage data
        "/api/3.0/mlflow/demo",
        "POST /api/3.0/mlflow/ui-telemetry",
        "/api/3.0/mlflow/workspaces",
        "/api/3.0/mlflow/review-queues",
        "/api/3.0/mlflow/label-schemas",
        "/api/3.0/mlflow/datasets/create",
        "/api/3.0/mlflow/datasets/{}",
        # traces in the form before MLflow 3, and calls of Databricks
        "POST /api/2.0/mlflow/traces",
        "PATCH /api/2.0/mlflow/traces/{}",
        "/api/2.0/mlflow/traces/link-prompts",
        "/api/2.0/mlflow/traces/link-to-run",
        "/api/2.0/mlflow/get-online-trace-details",
        "/api/2.0/mlflow/unified-traces",
        # a slip of MLflow's own (2.0mlflow), its pages a second time, queries of runs by GET
        "/api/2.0mlflow/experiments/search-datasets",
        "/build/{path}",
        "GET /graphql",
    }
)
"""Calls that are refused on purpose: a path with all that is below it, or one method and exactly one path."""


def _routes() -> Iterator[tuple[str, str]]:
    """Method and path of each route of MLflow's application; `{}` is one part of a path, `{path}` are several."""
    from mlflow.server import app as flask_app
    from mlflow.server.fastapi_app import app

    def walk(routes: list[object]) -> Iterator[tuple[str, str]]:
        for route in routes:
            if (candidates := getattr(route, "effective_candidates", None)) is not None:
                yield from walk(candidates())
            else:
                yield from ((method, route.path) for method in getattr(route, "methods", None) or ())  # type: ignore[attr-defined]

    found = list(walk(app.routes))
    assert len(found) > 50, "FastAPI's routes"
    rules = [(method, rule.rule) for rule in flask_app.url_map.iter_rules() for method in rule.methods or ()]
    for method, path in {*found, *rules}:
        several = re.sub(r"<path:[^>]+>|\{[^}]+:path\}", "{path}", path)
        plain = re.sub(r"<[^>]+>|\{(?!path\})[^}]+\}", "{}", several)
        if method not in ("HEAD", "OPTIONS"):
            yield method, plain.replace("/ajax-api/", "/api/")


def _is_refused_on_purpose(method: str, path: str) -> bool:
    above = [path[: place.start()] for place in re.finditer("/|$", path)]
    return f"{method} {path}" in REFUSED or not REFUSED.isdisjoint(above)


def test_each_route_of_mlflow_is_answered_or_refused_on_purpose():
    """A later MLflow with another route fails here; until it is listed in one of the two places, it is refused."""
    routes = set(_routes())
    assert len(routes) > 250
    listed = set(listed_calls())
    assert not {route for route in routes - listed if not _is_refused_on_purpose(*route)}
    assert not {route for route in routes & listed if _is_refused_on_purpose(*route)}
    assert not listed - routes, "MLflow has no such call"
    filled = {(method, re.sub(r"\{(?:path)?\}", "1", path)) for method, path in routes - listed}
    assert not {route for route in filled if is_listed(*route)}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", f"{_API}/assistant/config"),
        ("PUT", "/ajax-api/3.0/mlflow/assistant/config"),
        ("PUT", "/ajax-api/3.0/mlflow/assistant/config/"),
        ("PUT", "//ajax-api/3.0/mlflow/assistant/config"),
        ("PUT", "/ajax-api//3.0/mlflow/assistant/config"),
        ("PUT", "/prefix/ajax-api/3.0/mlflow/assistant/config"),
        ("PUT", "/ajax-api/2.0/mlflow/experiments/../../../3.0/mlflow/assistant/config"),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/../../../../ajax-api/3.0/mlflow/assistant/config"),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/a//b"),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/.."),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/a\\..\\b"),
        ("GET", "/api/2.0/mlflow/logged-models/../gateway-proxy"),
        ("GET", "/api/2.0/mlflow/logged-models/a/b"),
        ("GET", "/api/2.0/mlflow/experiments/get\n"),
        ("GET", "/api/2.0/mlflow/experiments/get/"),
        ("GET", "/api/2.0/mlflow/Experiments/get"),
        ("GET", "/api/2x0/mlflow/experiments/get"),
        ("GET", "/api/3.0/mlflow/experiments/get"),
        ("GET", "/x/api/2.0/mlflow/experiments/get"),
        ("TRACE", "/"),
        ("OPTIONS", "/api/2.0/mlflow/experiments/get"),
        ("DELETE", "/"),
        ("DELETE", "/api/2.0/mlflow-artifacts/artifacts/"),
        ("DELETE", "/api/2.0/mlflow-artifacts/artifacts/1//"),
        ("GET", "/api/2.0/mlflow-artifacts/artifacts/1/"),
    ],
)
def test_no_spelling_of_a_path_is_another_path(method: str, path: str):
    """Slashes, dots, prefixes, versions and letters: the path is one of the list or it is refused."""
    assert not is_listed(method, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("HEAD", "/health"),
        ("GET", "/static-files/static/js/main.c2f5f8d4.js"),
        ("GET", "/api/2.0/mlflow/experiments/get"),
        ("GET", "/ajax-api/2.0/mlflow/experiments/get"),
        ("POST", "/api/2.0/mlflow/logged-models"),
        ("DELETE", "/api/2.0/mlflow/logged-models/m-1/tags/a key"),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/1/run/artifacts/50%.txt"),
        ("DELETE", "/api/2.0/mlflow-artifacts/artifacts/1/models/m-1/artifacts/"),
        ("PATCH", "/api/3.0/mlflow/traces/tr-1/assessments/a-1"),
    ],
)
def test_what_clients_and_pages_need_is_listed(method: str, path: str):
    """Under both prefixes, with names as clients choose them."""
    assert is_listed(method, path)
