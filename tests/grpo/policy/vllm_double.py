"""Double of the part of vLLM that `grpo.policy.vllm` calls, with a real model and plain forward passes.

As in vLLM, unknown arguments are errors, an engine stays on the event loop that it was created in, prompts are cached
until the cache is reset (even if the weights change), cancelled requests are aborted, and a tokenizer is needed without
`skip_tokenizer_init`.
"""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from grpo.policy.transformers.model import load


class RequestOutputKind(enum.Enum):
    CUMULATIVE, DELTA, FINAL_ONLY = range(3)


@dataclass(kw_only=True)
class SamplingParams:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 16
    seed: int | None = None
    logprobs: int | None = None
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE


@dataclass(kw_only=True)
class AsyncEngineArgs:
    model: str
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    dtype: str = "auto"
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    enable_prefix_caching: bool = False
    enable_chunked_prefill: bool | None = None
    generation_config: str = "auto"
    logprobs_mode: str = "raw_logprobs"
    disable_log_stats: bool = False


class EngineDeadError(Exception):
    pass


@dataclass(kw_only=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


@dataclass
class Logprob:
    logprob: float


@dataclass
class CompletionOutput:
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]]
    finish_reason: str


@dataclass
class RequestOutput:
    outputs: list[CompletionOutput]


class AsyncLLMEngine:
    """Engine double, which records its calls in `VLLM.calls`."""

    double: VLLM

    def __init__(self, args: AsyncEngineArgs) -> None:
        self.args = args
        self.loop = asyncio.get_running_loop()
        self.policy = load(Path(args.model))
        self.weights = _weights(args.model)
        self.cache: dict[tuple[int, ...], torch.Tensor] = {}

    @classmethod
    def from_engine_args(cls, args: AsyncEngineArgs) -> AsyncLLMEngine:
        cls.double.calls.append(("start", _weights(args.model)))
        cls.double.args.append(args)
        if cls.double.refuses_start:
            raise ValueError(cls.double.refuses_start)
        return cls(args)

    async def generate(
        self, prompt: dict[str, list[int]], params: SamplingParams, request_id: str
    ) -> AsyncIterator[RequestOutput]:
        assert asyncio.get_running_loop() is self.loop, "an engine cannot leave the loop that it was made in"
        assert self.args.skip_tokenizer_init
        assert not params.detokenize
        self.double.params.append(params)
        try:
            self.double.started.set()
            while self.double.paused:
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            await asyncio.sleep(self.double.abort_s)
            self.double.calls.append(("abort", request_id))
            self.double.aborted.set()
            raise
        if self.double.dies:
            raise EngineDeadError("EngineCore encountered an issue. See stack trace (above) for the root cause.")
        yield RequestOutput(outputs=[self._complete(prompt["prompt_token_ids"], params)])

    async def collective_rpc(self, method: str, kwargs: dict[str, Any] | None = None) -> list[None]:
        assert asyncio.get_running_loop() is self.loop
        assert method == "reload_weights"
        path = (kwargs or {})["weights_path"]
        self.double.calls.append(("reload", _weights(path)))
        self.policy.model.load_state_dict(load(Path(path)).model.state_dict())
        return [None]

    async def reset_prefix_cache(self) -> bool:
        assert asyncio.get_running_loop() is self.loop
        if self.double.refuses_cache_reset:
            return False
        self.cache.clear()
        return True

    def shutdown(self) -> None:
        self.double.calls.append(("shutdown", self.weights))

    def _complete(self, prompt: list[int], params: SamplingParams) -> CompletionOutput:
        generator = torch.Generator().manual_seed(params.seed or 0)
        ids, logprobs = list(prompt), []
        while True:
            row = self._logits(ids) / (params.temperature if self.args.logprobs_mode == "processed_logprobs" else 1.0)
            scores = torch.log_softmax(row, dim=-1)
            token = int(torch.multinomial(scores.exp(), 1, generator=generator))
            ids.append(token)
            returned = {token, *scores.topk(params.logprobs or 0).indices.tolist()}
            logprobs.append({index: Logprob(float(scores[index])) for index in sorted(returned)})
            stopped = token in params.stop_token_ids
            if stopped or len(logprobs) == params.max_tokens:
                reason = self.double.finish_reason or ("stop" if stopped else "length")
                return CompletionOutput(ids[len(prompt) :], logprobs, reason)

    def _logits(self, ids: list[int]) -> torch.Tensor:
        key = tuple(ids)
        if key not in self.cache:
            with torch.no_grad():
                self.cache[key] = self.policy.model(input_ids=torch.tensor([ids])).logits[0, -1].float()
        return self.cache[key]


def _weights(folder: str) -> str:
    """Folder of the weights that a folder holds or links to. vLLM reads each file of this kind, so there is one."""
    (weights,) = Path(folder).glob("*.safetensors")
    return str(weights.resolve().parent)


class VLLM:
    """The installed double: recorded calls, and its behaviour."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.args: list[AsyncEngineArgs] = []
        self.params: list[SamplingParams] = []
        self.paused = False
        self.refuses_cache_reset = False
        self.refuses_start = ""
        self.dies = False
        self.abort_s = 0.0
        self.on_cpu = False
        self.finish_reason: str | None = None
        self.started, self.aborted = threading.Event(), threading.Event()

    def modules(self) -> dict[str, ModuleType]:
        """Modules for `sys.modules`."""
        names = ("", ".sampling_params", ".platforms", ".lora.request", ".v1", ".v1.engine", ".v1.engine.exceptions")
        package, params, platforms, lora, *inner = (ModuleType(f"vllm{name}") for name in names)
        engine = type("AsyncLLMEngine", (AsyncLLMEngine,), {"double": self})
        package.__dict__.update(AsyncEngineArgs=AsyncEngineArgs, AsyncLLMEngine=engine, SamplingParams=SamplingParams)
        package.__dict__["sampling_params"] = params
        params.__dict__["RequestOutputKind"] = RequestOutputKind
        platforms.__dict__["current_platform"] = SimpleNamespace(is_cpu=lambda: self.on_cpu)
        lora.__dict__["LoRARequest"] = LoRARequest
        inner[-1].__dict__["EngineDeadError"] = EngineDeadError
        return {module.__name__: module for module in (package, params, platforms, lora, *inner)}
