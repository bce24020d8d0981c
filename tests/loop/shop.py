"""A shop in a home of its own: Prefect, the command line, and the server of the champion."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import yaml

from grpo.retraining.reports import RetrainingReport
from grpo.serving.access.keys import KeyStore
from grpo_local import settings
from grpo_local.login import CLIENT
from grpo_local.managed_process import ManagedProcess, free_port
from tests.e2e.served import LOGIN, prefect_service
from tests.places import ROOT

MODEL = "support-desk"
LOG = "served"
PROMOTED_OR_REFUSED = (0, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """Home, environment of its commands, and the address of Prefect."""

    home: Path
    environment: Mapping[str, str]

    async def grpo(self, *arguments: str) -> None:
        """Run a command of `grpo`; its output goes to a file in the home."""
        log = self.home / f"{arguments[0]}.log"
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "grpo_cli", *arguments, stdout=output, stderr=output, cwd=ROOT,
                env=dict(self.environment),
            )  # fmt: skip
            status = await process.wait()
        if status not in PROMOTED_OR_REFUSED:
            raise RuntimeError(f"grpo {arguments[0]} ended with exit code {status}; see {log}")

    def write(self, name: str, config: Mapping[str, Any]) -> str:
        """Write a config into the home; returns its path."""
        path = self.home / f"{name}.yaml"
        path.write_text(yaml.safe_dump(dict(config), sort_keys=False))
        return str(path)

    def retraining(self, name: str) -> RetrainingReport:
        """Report of the last retraining of this name."""
        return RetrainingReport.model_validate_json((self.home / name / "retraining.json").read_bytes())

    @contextmanager
    def server(self) -> Iterator[openai.AsyncOpenAI]:
        """`grpo serve models:/support-desk@champion` as a process, and OpenAI's client with a key for it."""
        port = free_port()
        secret = KeyStore(self.home / "keys.json").create(f"customers-{port}", ("chat", "feedback", "outcomes"))
        service = ManagedProcess(
            name="chat",
            home=self.home,
            arguments=(
                "grpo_cli", "serve", f"models:/{MODEL}@champion", "--port", str(port), "--set",
                f"log={self.home / LOG}", "--set", "service={consent: training, licence: own}",
            ),
            port=port,
            environment={**self.environment},
        )  # fmt: skip
        with service.shared() as url:
            yield openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=secret, timeout=120)


@contextmanager
def open_shop(home: Path) -> Iterator[Shop]:
    """Start Prefect for a home, and stop it at the end."""
    environment = {**os.environ, **settings.offline_variables(), **settings.home_variables(home)}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "flows", ROOT / "tasks")))}
    environment.pop("PREFECT_API_URL", None)
    with prefect_service(home, environment).shared() as url:
        yield Shop(home=home, environment={**environment, "PREFECT_API_URL": url, CLIENT: LOGIN})
