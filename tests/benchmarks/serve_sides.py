"""Servers of the serving benchmark, each a process of its own that rests while another one is measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from grpo.environments.support_desk.desk import SupportDesk
from grpo.policy.tokenizer import load_tokenizer
from grpo.serving.access.keys import KeyStore
from grpo_local.managed_process import free_port
from tests.benchmarks.serve_load import Load
from tests.benchmarks.vllm_engine import PYTHON as VLLM_PYTHON
from tests.doubles import desk_scenarios
from tests.places import ROOT

OURS, EACH = "grpo serve", "grpo serve --set service.stream_interval_s=0"
DEFAULT, BATCHING = "transformers serve", "transformers serve, continuous batching"
VLLM, BARE = "vLLM", "the sampler without a server"
_START_S = 240.0
BIN = Path(sys.executable).parent
LINES = tuple(
    line
    for scenario in desk_scenarios(64)
    for line in (scenario.user_responses[0], *(str(order) for order in scenario.world["orders"].values()))
)
"""Customers' first lines, each followed by what a tool says of the order."""


@dataclass(slots=True, kw_only=True)
class Side:
    """A running server."""

    name: str
    port: int
    model: str
    process: subprocess.Popen[bytes]
    key: str = ""
    by_id: bool = False
    log: Path = field(default_factory=Path)

    def load(self, **settings: Any) -> Load:
        """Load of the support desk's conversations on this server."""
        given: dict[str, Any] = {"system": SupportDesk.system_prompt, "lines": LINES, **settings}
        return Load(ports=(self.port,), model=self.model, key=self.key, by_id=self.by_id, **given)

    def pause(self) -> None:
        """Stop the processes of the server, so that they take no time from another one."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        os.killpg(self.process.pid, signal.SIGCONT)


def long_line(folder: Path, tokens: int) -> str:
    """Customers' lines of this many tokens together."""
    tokenizer = load_tokenizer(folder)
    ids: list[int] = tokenizer(" ".join(LINES * 8))["input_ids"][:tokens]
    text: str = tokenizer.decode(ids)
    return text


@contextmanager
def running(command: Sequence[str], port: int, log: Path, environment: Mapping[str, str]) -> Iterator[Any]:
    """Start a server, wait until it is ready, and end it by SIGTERM."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait_ready(process, port, log)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGCONT)
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        for path in ("/ready", "/health"):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5):
                    return
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    break
            except OSError:
                break
        time.sleep(0.1)
    raise RuntimeError(f"a server did not start: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")


@contextmanager
def ours(
    address: str,
    home: Path,
    *,
    name: str = OURS,
    without: str = "",
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    port: int | None = None,
) -> Iterator[Side]:
    """`grpo serve` of a model in a home of its own; `without` leaves out the log or the metrics.

    The server listens on `port`, or on a free port.
    """
    home.mkdir(parents=True, exist_ok=True)
    store = KeyStore(home / "keys.json")
    key = store.create(f"load-{len(store.list())}", ("chat", "metrics"))
    port = port or free_port()
    module = ("tests.benchmarks.serve_without", without) if without else ("grpo_cli",)
    command = [sys.executable, "-m", *module, "serve", address, "--port", str(port), *options]
    variables = {"GRPO_HOME": str(home), **(environment or {})}
    log = home / f"{port}.txt"
    model = address.removeprefix("models:/").partition("@")[0] if address.startswith("models:/") else Path(address).name
    with running(command, port, log, variables) as process:
        yield Side(name=name, port=port, model=model, process=process, key=key, by_id=True, log=log)


@contextmanager
def transformers_serve(folder: Path, log: Path, *, batching: bool) -> Iterator[Side]:
    """`transformers serve`, by default or with continuous batching."""
    port = free_port()
    command = [str(BIN / "transformers"), "serve", str(folder), "--port", str(port), "--host", "127.0.0.1"]
    command += ["--device", "cpu", "--dtype", "float32", "--log-level", "error"]
    if batching:
        command += ["--continuous-batching", "--cb-block-size", "16", "--cb-num-blocks", "4096"]
        command += ["--cb-max-batch-tokens", "128"]
    name = BATCHING if batching else DEFAULT
    with running(command, port, log, {}) as process:
        yield Side(name=name, port=port, model=str(folder), process=process, log=log)


@contextmanager
def vllm_serve(folder: Path, log: Path, *, max_context: int) -> Iterator[Side]:
    """`vllm serve` in the environment of `make vllm`."""
    port = free_port()
    command = [str(VLLM_PYTHON.parent / "vllm"), "serve", str(folder), "--port", str(port), "--host", "127.0.0.1"]
    command += ["--served-model-name", "clerk", "--dtype", "float32", "--max-model-len", str(max_context)]
    command += ["--max-num-seqs", "64", "--gpu-memory-utilization", "0.1", "--disable-log-stats", "--api-key", "key"]
    command += ["--generation-config", "vllm"]
    with running(command, port, log, {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}) as process:
        yield Side(name=VLLM, port=port, model="clerk", process=process, key="key", log=log)


def unending(folder: Path) -> None:
    """Change a model so that it never ends a turn nor calls a tool: replies have as many tokens as are asked for.

    Such tokens get the embedding, and with it the logit, of a token that is unlikely everywhere.
    """
    from safetensors.torch import load_file, save_file

    from grpo.policy.renderer import make_renderer
    from grpo.policy.transformers.model import load

    policy = load(folder)
    renderer = make_renderer(policy.tokenizer, tools=())
    texts = [policy.tokenizer(line, return_tensors="pt")["input_ids"] for line in LINES[:32]]
    with torch.no_grad():
        likeliest = torch.cat([policy.model(ids).logits[0].log_softmax(-1) for ids in texts]).amax(0)
    calls = [id_ for text, id_ in policy.tokenizer.get_vocab().items() if "tool_call" in text]
    ends = [*renderer.stop_ids, policy.tokenizer.eos_token_id, *calls]
    likeliest[ends] = 0.0
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.embed_tokens.weight"][ends] = weights["model.embed_tokens.weight"][int(likeliest.argmin())].clone()
    save_file(weights, path, metadata={"format": "pt"})
