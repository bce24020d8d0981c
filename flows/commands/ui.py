"""`grpo ui`."""

from __future__ import annotations

import time

from flows.cli.command import console
from flows.commands.begin import begin


def ui() -> None:
    """Show the runs so far in Prefect's and MLflow's own pages, on this machine only, until interrupted.

    Example: grpo ui
    """
    home = begin()
    from flows.local.login import password_hint
    from flows.local.servers import mlflow_server, prefect_server, prefect_service

    try:
        with prefect_server(home) as prefect_url, mlflow_server(home) as mlflow_url:
            console.print(f"Prefect {prefect_url.removesuffix('/api')}   MLflow {mlflow_url}   Ctrl-C ends both")
            if prefect_url == prefect_service(home).address():
                console.print(password_hint(home), soft_wrap=True)
            while True:
                time.sleep(3600)
    except KeyboardInterrupt:
        return
