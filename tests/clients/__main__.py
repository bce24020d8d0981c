"""Other people's clients against a real server, and the table of docs/serving.md: `make clients`.

Each client is a process of an environment of its own, .venv-clients or tests/clients/npm. A result that is not that of
`DIFFERENT` ends the command with 1; the table is written in either case.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from grpo.config.serving import CallerLimits
from grpo.serving.engine.versions import ServedModel
from tests.grpo.serving.chat_servers import ChatServer, chat_server, clerk
from tests.places import ROOT

PYTHON = ROOT / ".venv-clients/bin/python"
NPM = ROOT / "tests/clients/npm"
PAGE = ROOT / "docs/serving.md"
CLIENTS = (
    "openai (Python)",
    "openai (npm)",
    "LangChain",
    "LangGraph supervisor",
    "Agents SDK, chat",
    "Agents SDK, Responses",
    "pydantic-ai",
    "instructor",
    "AutoGen",
    "LiteLLM",
    "AI SDK",
)
WHATS = (
    "plain",
    "stream",
    "tool loop",
    "streamed tool loop",
    "history",
    "structured output",
    "two system prompts",
    "names",
    "one call at a time",
    "cancel",
    "429",
)
DIFFERENT: dict[tuple[str, str], str] = {}
"""Beginning of the sentence of each case that does not work, and why."""
_BEGIN, _END = "<!-- clients: make clients -->", "<!-- end of clients -->"


def next_version(current: str) -> ServedModel | None:
    """The shipped clerk, which takes the likeliest token."""
    return None if current else replace(clerk(), temperature=0.0, max_new_tokens=240)


def results(server: ChatServer, client: str) -> Iterator[tuple[str, str]]:
    """Results of the cases of a client by their names."""
    limited = server.keys.create("limited-" + re.sub(r"\W", "-", client), ("chat",), limits=CallerLimits(parallel=1))
    environment = {
        **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_KEY": str(server.client().api_key),
        "LIMITED_KEY": limited,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }
    is_npm = client in ("openai (npm)", "AI SDK")
    command = (
        ["node", str(NPM / "cases.mjs"), client]
        if is_npm
        else [str(PYTHON), "-W", "ignore", "tests/clients/cases.py", client]
    )
    finished = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=400)
    lines = [line for line in finished.stdout.splitlines() if line.startswith('{"client"')]
    if not lines:
        raise SystemExit(f"{client} has no results:\n{finished.stderr[-3000:]}")
    for line in lines:
        record = json.loads(line)
        yield record["what"], record["result"]


def table(cells: dict[tuple[str, str], str]) -> str:
    """Table of the page: `works`, a dash for what a client does not have, or the sentence."""
    rows = ["| client | " + " | ".join(WHATS) + " |", "|---" * (1 + len(WHATS)) + "|"]
    for client in CLIENTS:
        rows.append(
            f"| {client} | " + " | ".join(cells.get((client, what), "–").replace("|", "/") for what in WHATS) + " |"
        )
    return "\n".join(rows)


def main(clients: list[str]) -> int:
    """Run the clients, all or those named; returns the exit code."""
    cells: dict[tuple[str, str], str] = {}
    with tempfile.TemporaryDirectory() as folder, chat_server(Path(folder), next_version) as server:
        for client in clients or CLIENTS:
            for what, result in results(server, client):
                cells[client, what] = result
                print(f"{client}: {what}: {result}", flush=True)
    if not clients:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(_BEGIN)
        PAGE.write_text(f"{before}{_BEGIN}\n{table(cells)}\n{_END}{rest.split(_END)[1]}", encoding="utf-8")
    wrong = [key for key, result in cells.items() if not result.startswith(DIFFERENT.get(key, "works"))]
    for client, what in wrong:
        print(f"not as expected: {client}: {what}: {cells[client, what]}")
    works = sum(result == "works" for result in cells.values())
    print(f"{works} of {len(cells)} cases work")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
