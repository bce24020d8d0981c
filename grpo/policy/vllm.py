"""vLLM inference backend: the weights of a checkpoint folder in one engine of this process.

The engine outlives a policy version: the next checkpoint's weights are loaded over the last ones, and the prefix cache
is reset. It runs on an event loop of its own, because an engine cannot outlive the loop that it was created in, and
every stage has another one.

Log-probabilities are those of the full distribution at the sampling temperature, in float32. The kernels are not the
learner's, so they differ from its own in the last digits: see `training.ratio_tolerance`.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from grpo.errors import PolicyError
from grpo.policy.policy import Generation, Prompt, Sampler, Sampling, SessionFactory
from grpo.policy.transformers.model import load_tokenizer
from grpo.renderers.chat_template import Renderer

try:
    from vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams
    from vllm.sampling_params import RequestOutputKind
except ModuleNotFoundError as error:
    raise PolicyError(
        "package vllm is not installed; pip install 'grpo[vllm]', or set rollout.backend: transformers"
    ) from error

T = TypeVar("T")


class VLLMPolicy:
    """Policy of a model folder on the vLLM engine of this process."""

    def __init__(
        self,
        folder: Path,
        *,
        policy_hash: str | None = None,
        max_context: int | None = None,
        gpu_memory_utilization: float = 0.9,
        chat_template: str | None = None,
    ) -> None:
        """Read the config of a folder; `policy_hash` defaults to the digest of the weight files.

        `max_context` limits the context below the model's own; `gpu_memory_utilization` is the engine's fraction of
        the GPU memory, for weights and KV cache.
        """
        try:
            self.config = (folder / "config.json").read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise PolicyError(
                f"no model in {folder}: config.json is missing; set policy.model to a model folder"
            ) from error
        max_positions = json.loads(self.config).get("max_position_embeddings")
        if max_positions is None:
            raise PolicyError(f"{folder}/config.json has no max_position_embeddings; use a causal language model")
        self.folder = folder
        self.hash = policy_hash or _files_hash(folder)
        self.max_context = min(int(max_positions), max_context or int(max_positions))
        self.gpu_memory_utilization = gpu_memory_utilization
        self.tokenizer = load_tokenizer(folder, chat_template=chat_template)

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[Sampler]:
        """See `Policy.sampler`; waits while the engine serves another policy."""
        engine.acquire(self)
        try:
            yield SessionFactory(partial(VLLMSession, engine, renderer.stop_ids))
        finally:
            engine.release()


class Engine:
    """The vLLM engine of this process and the policy that it serves."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._engine_config: tuple[str, int, float] | None = None
        self._policy: str | None = None
        self._users = 0
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._request_ids = itertools.count()

    def acquire(self, policy: VLLMPolicy) -> None:
        """Load this policy and keep it until `release`; waits while another one is in use."""
        with self._changed:
            while self._users and self._policy != policy.hash:
                self._changed.wait()
            if self._policy != policy.hash:
                self._load(policy)
            self._users += 1

    def release(self) -> None:
        """End one use of the policy."""
        with self._changed:
            self._users -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Free the memory; the next policy starts another engine."""
        with self._changed:
            if self._engine is not None:
                self._engine.shutdown()
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._engine = self._loop = self._policy = self._engine_config = None

    async def generate(self, token_ids: list[int], params: Any) -> Any:
        """Generate after these tokens; cancellation aborts the engine's request."""
        request = asyncio.run_coroutine_threadsafe(self._generate(token_ids, params), self._running_loop)
        return await asyncio.wrap_future(request)

    def _load(self, policy: VLLMPolicy) -> None:
        """Load the policy's weights into the engine; another architecture or size needs another engine."""
        engine_config = (policy.config, policy.max_context, policy.gpu_memory_utilization)
        if self._engine_config != engine_config:
            self.close()
            self._engine = self._wait_for(self._start(policy))
            self._engine_config = engine_config
        else:
            self._policy = None  # a failed reload leaves weights of two versions
            self._wait_for(self._reload(policy.folder))
        self._policy = policy.hash

    async def _start(self, policy: VLLMPolicy) -> Any:
        return AsyncLLMEngine.from_engine_args(
            AsyncEngineArgs(
                model=str(policy.folder),
                skip_tokenizer_init=True,
                trust_remote_code=False,
                dtype="float32",  # as the checkpoint; "auto" would halve it
                max_model_len=policy.max_context,
                gpu_memory_utilization=policy.gpu_memory_utilization,
                enable_prefix_caching=True,
                generation_config="vllm",  # no top-p, penalty or stop token from generation_config.json
                logprobs_mode="processed_logprobs",
                disable_log_stats=True,
            )
        )

    async def _reload(self, folder: Path) -> None:
        await self._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        if await self._engine.reset_prefix_cache() is False:
            raise PolicyError(f"vLLM did not drop its prefix cache for the weights in {folder}; restart the run")

    async def _generate(self, token_ids: list[int], params: Any) -> Any:
        request_id = f"turn-{next(self._request_ids)}"
        outputs = [out async for out in self._engine.generate({"prompt_token_ids": token_ids}, params, request_id)]
        return outputs[-1]

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._running_loop).result()

    @property
    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(self._loop,), name="vllm", daemon=True).start()
        return self._loop


class VLLMSession:
    """One conversation with all its tokens so far, which are in the engine's prefix cache."""

    def __init__(self, engine: Engine, stop_ids: frozenset[int]) -> None:
        self._engine = engine
        self._stop_ids = stop_ids
        self._ids: list[int] = []
        self._turns = 0

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Session.generate`."""
        self._ids += prompt.new_ids
        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            max_tokens=sampling.max_new_tokens,
            seed=sampling.turn_seed(self._turns),
            logprobs=0,
            stop_token_ids=sorted(self._stop_ids),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        request_output = await self._engine.generate(list(self._ids), params)
        output = request_output.outputs[0]
        ids = list(output.token_ids)
        if output.finish_reason not in ("stop", "length") or len(output.logprobs) != len(ids):
            raise PolicyError(f"vLLM ended a turn by {output.finish_reason!r} after {len(ids)} tokens; see its log")
        logprobs = [float(step[token].logprob) for step, token in zip(output.logprobs, ids, strict=True)]
        self._turns += 1
        self._ids += ids
        stopped = ids[-1] in self._stop_ids
        return Generation(
            token_ids=ids, logprobs=logprobs if sampling.unfiltered else None, stop="stop" if stopped else "length"
        )

    def close(self) -> None:
        """No resource to release: the engine evicts prefixes by itself."""


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _files_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


engine = Engine()
