"""The application of `vllm serve` with a double of its engine, on a free port in a thread."""

from __future__ import annotations

import asyncio
import copy
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import FastAPI

from grpo.policy.transformers.adapters import load_adapters
from grpo.policy.transformers.model import TransformersPolicy
from tests.grpo.policy.vllm_double import VLLM, AsyncEngineArgs, AsyncLLMEngine, SamplingParams

WORKER = "grpo.serving.vllm_server.worker.WeightLoader"


class Engine(AsyncLLMEngine):
    """Engine of a server. Turns take `turn_s`, and loading fails while `breaks` is set."""

    def __init__(self, model: Path, **options: Any) -> None:
        self.double, processed = VLLM(), "processed_logprobs"
        super().__init__(AsyncEngineArgs(model=str(model), skip_tokenizer_init=True, logprobs_mode=processed))
        self.model_config = SimpleNamespace(
            model=str(model),
            revision=None,
            max_model_len=512,
            enforce_eager=options.pop("eager", True),
            dtype="torch.float32",
            logprobs_mode=options.pop("logprobs_mode", processed),
        )
        self.vllm_config = SimpleNamespace(
            model_config=self.model_config,
            device_config=SimpleNamespace(device_type="cpu"),
            scheduler_config=SimpleNamespace(enable_chunked_prefill=options.pop("chunked", False)),
            parallel_config=SimpleNamespace(worker_extension_cls=options.pop("worker", WORKER)),
            lora_config=SimpleNamespace(max_loras=2) if options.pop("lora", True) else None,
            additional_config={"rollouts": {"weights_bytes": 2**26}},
        )
        assert not options
        self.turn_s, self.breaks = 0.0, False
        self.running = self.loads = 0
        self.adapters: dict[int, _Adapted] = {}
        """Policies of the loaded adapters, by the id of their request."""
        self._paused = False

    async def generate(  # type: ignore[override]
        self, prompt: dict[str, list[int]], params: SamplingParams, request_id: str, *, lora_request: Any = None
    ) -> AsyncIterator[Any]:
        """Complete a prompt."""
        assert not self._paused
        assert params.ignore_eos
        self.running += 1
        try:
            await asyncio.sleep(self.turn_s)
            if lora_request is None:
                async for output in super().generate(prompt, params, request_id):
                    yield output
            else:
                async for output in self.adapters[lora_request.lora_int_id].generate(prompt, params, request_id):
                    yield output
        finally:
            self.running -= 1

    async def add_lora(self, request: Any) -> bool:
        """Load adapters on top of the weights."""
        assert len(self.adapters) < self.vllm_config.lora_config.max_loras
        self.adapters[request.lora_int_id] = _Adapted(self, Path(request.lora_path))
        return True

    async def remove_lora(self, number: int) -> bool:
        """Remove adapters."""
        return self.adapters.pop(number) is not None

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        """Pause as vLLM does. Nothing may run, because the weights would change in the middle of a turn."""
        assert (mode, self.running) == ("wait", 0)
        self._paused = True

    async def resume_generation(self) -> None:
        """End the pause."""
        self._paused = False

    async def collective_rpc(self, method: str, args: tuple[str, ...] = ()) -> list[None]:  # type: ignore[override]
        """Load the weights in a folder."""
        assert (method, self._paused) == ("load_rollout_weights", True)
        self.loads += 1
        await super().collective_rpc("reload_weights", {"weights_path": args[0]})
        assert not self.adapters
        if self.breaks:
            raise RuntimeError("a weight is missing")
        return [None]


class _Adapted(AsyncLLMEngine):
    """Adapters on top of a copy of the weights."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.double, self.args, self.loop, self.cache = engine.double, engine.args, engine.loop, {}
        model = copy.deepcopy(engine.policy.model)
        load_adapters(model, folder)
        self.policy = TransformersPolicy(model, engine.policy.tokenizer)


class VLLMServer:
    """A running server."""

    url = ""
    engine: Engine


@contextmanager
def vllm_server(model: Path, *, api_servers: int = 1, **options: Any) -> Iterator[VLLMServer]:
    """Serve a model with the middleware until the block ends."""
    from grpo.serving.vllm_server.middleware import RolloutRoutes

    server = VLLMServer()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield

    app = FastAPI(lifespan=lifespan)
    app.add_middleware(RolloutRoutes)
    app.state.args = SimpleNamespace(api_server_count=api_servers)

    @app.get("/health")
    async def health() -> str:
        return "vLLM"

    async def serve(listener: socket.socket) -> None:
        server.engine = app.state.engine_client = Engine(model, **options)
        await running.serve([listener])

    running = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=lambda: asyncio.run(serve(listener)))
        thread.start()
        while not running.started:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield server
        finally:
            running.should_exit = True
            thread.join()
