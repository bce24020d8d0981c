"""vLLM inference backend: the weights of a checkpoint folder in one engine of this process.

The engine outlives a policy version. The next checkpoint's weights are loaded over the last ones, and the prefix cache
is reset. On a CPU each version gets a new engine instead. There vLLM 0.32 multiplies by packed copies of the weights,
and its compiled graph and a head that is tied to the embedding keep the copies of the last version through a reload.
The engine runs on its own event loop, because it cannot outlive the loop that it was created in, and every stage has a
different loop.

Adapters are merged into their base's weights once per policy version, when the engine loads them. This is exact for
every layer that can have adapters, and saves two small products per layer and token.

Log-probabilities are computed over the full distribution at the sampling temperature, in float32. They differ from the
learner's in the last digits, because vLLM's kernels are not the learner's. See `training.ratio_tolerance`.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import itertools
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from transformers import AutoConfig

from grpo.errors import PolicyError, install_command
from grpo.policy.context import context_limit
from grpo.policy.model_files import tokenizer_folder
from grpo.policy.policy import Generation, Prompt, Sampler, Sampling, SessionFactory
from grpo.policy.tokenizer import load_tokenizer
from grpo.policy.transformers.adapters import merge_adapters
from grpo.policy.transformers.dtype import Dtype
from grpo.policy.transformers.model import TransformersPolicy, load
from grpo.renderers.chat_template import Renderer

try:
    from vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams
    from vllm.platforms import current_platform
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.exceptions import EngineDeadError
except ModuleNotFoundError as error:
    raise PolicyError(
        f"package vllm is not installed. Call {install_command('vllm')}, or set rollout.backend: transformers"
    ) from error

T = TypeVar("T")


class VLLMPolicy:
    """Policy of a model folder, or of adapters and their base, on the vLLM engine of this process."""

    def __init__(
        self,
        folder: Path,
        *,
        base: Path | None = None,
        policy_hash: str | None = None,
        max_context: int | None = None,
        gpu_memory_utilization: float = 0.9,
        dtype: Dtype = "float32",
        compiled: bool | None = None,
        chat_template: str | None = None,
    ) -> None:
        """Read the config of a folder or, if the folder holds adapters, of their `base`.

        `policy_hash` defaults to the digest of the weight files. `max_context` limits the context below the model's
        own. `gpu_memory_utilization` is the fraction of the GPU's memory that the engine uses for weights and KV cache,
        or of the machine's memory if vLLM runs on its CPU. Weights and activations are held in `dtype`. By default the
        forward pass is `compiled` only on a GPU. On a CPU an engine serves one version, and compilation, which takes
        half a minute, takes longer than it saves.
        """
        folders = (folder,) if base is None else (base, folder)
        try:
            self.config = (folders[0] / "config.json").read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise PolicyError(
                f"no model in {folders[0]}: config.json is missing. Set policy.model to a model folder"
            ) from error
        limit = context_limit(AutoConfig.from_pretrained(str(folders[0]), trust_remote_code=False))
        self.folder = folder
        self.base = base
        self.hash = policy_hash or _files_hash(*folders)
        self.max_context = min(limit, max_context or limit)
        self.gpu_memory_utilization = gpu_memory_utilization
        self.dtype = dtype
        self.compiled = not current_platform.is_cpu() if compiled is None else compiled
        tokenizer = folder if base is None else tokenizer_folder(folder, base)
        self.tokenizer = load_tokenizer(tokenizer, chat_template=chat_template)

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[Sampler]:
        """See `Policy.sampler`. Waits while the engine serves another policy."""
        engine.acquire(self)
        try:
            yield SessionFactory(partial(VLLMSession, engine, renderer.stop_ids))
        finally:
            engine.release()

    @contextmanager
    def model_folder(self) -> Iterator[Path]:
        """Yield a temporary folder for the engine to read, with adapters merged into the weights.

        It leaves out the optimizer's moments of a checkpoint, because vLLM reads each `*.safetensors` in a folder as
        weights.
        """
        with tempfile.TemporaryDirectory(prefix="grpo-vllm-") as folder:
            if self.base is None:
                for path in self.folder.iterdir():
                    if path.suffix != ".safetensors" or path in _weight_files(self.folder):
                        (Path(folder) / path.name).symlink_to(path.resolve())
            else:
                adapted = load(self.folder, base=self.base)
                TransformersPolicy(merge_adapters(adapted.model), self.tokenizer).save(Path(folder))
            yield Path(folder)


class Engine:
    """The vLLM engine of this process and the policy that it serves."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._engine_config: tuple[str, int, float, str, bool] | None = None
        self._policy: str | None = None
        self._users = 0
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._request_ids = itertools.count()
        self._requests: set[asyncio.Task[Any]] = set()

    def acquire(self, policy: VLLMPolicy) -> None:
        """Load this policy and keep it until `release`. Waits while another one is in use."""
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
        """Free the memory. The next policy starts another engine."""
        with self._changed:
            if self._engine is not None:
                self._engine.shutdown()
            if self._loop is not None and self._thread is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
            self._engine = self._loop = self._thread = self._policy = self._engine_config = None

    async def generate(self, token_ids: list[int], params: Any) -> Any:
        """Generate after these tokens. If the call is cancelled, the engine's request is aborted."""
        request = asyncio.run_coroutine_threadsafe(self._generate(token_ids, params), self._running_loop)
        return await asyncio.wrap_future(request)

    def _load(self, policy: VLLMPolicy) -> None:
        """Load the policy's weights into the engine, or into a new one if architecture, size or dtype differ."""
        memory = policy.gpu_memory_utilization
        engine_config = (policy.config, policy.max_context, memory, policy.dtype, policy.compiled)
        self._wait_for(self._aborted())
        with policy.model_folder() as folder:
            if self._engine_config != engine_config or current_platform.is_cpu():
                self.close()
                self._engine = self._wait_for(self._start(policy, folder))
                self._engine_config = engine_config
            else:
                self._policy = None  # a failed reload leaves weights of two versions
                self._wait_for(self._reload(folder))
        self._policy = policy.hash

    async def _start(self, policy: VLLMPolicy, folder: Path) -> Any:
        try:
            return AsyncLLMEngine.from_engine_args(
                AsyncEngineArgs(
                    model=str(folder),
                    skip_tokenizer_init=True,
                    trust_remote_code=False,
                    dtype=policy.dtype,  # "auto" would halve float32
                    max_model_len=policy.max_context,
                    gpu_memory_utilization=policy.gpu_memory_utilization,
                    enforce_eager=not policy.compiled,
                    enable_prefix_caching=True,
                    # a chunk of a seeded request rewinds its generator, but a CPU's generator cannot be rewound
                    enable_chunked_prefill=False if current_platform.is_cpu() else None,
                    generation_config="vllm",  # no top-p, penalty or stop token from generation_config.json
                    logprobs_mode="processed_logprobs",
                    disable_log_stats=True,
                )
            )
        except (RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise PolicyError(
                f"vLLM does not start with the model in {policy.folder}: {reason}. See its log above. If memory is "
                "short, lower rollout.gpu_memory_utilization, now "
                f"{policy.gpu_memory_utilization:g}, or rollout.max_context, now {policy.max_context}"
            ) from error

    async def _aborted(self) -> None:
        """Wait until cancelled requests are aborted, because they hold blocks of the prefix cache until then."""
        if self._requests:
            await asyncio.wait(self._requests)

    async def _reload(self, folder: Path) -> None:
        await self._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        if await self._engine.reset_prefix_cache() is False:
            raise PolicyError(f"vLLM did not drop its prefix cache for the weights in {folder}. Restart the run")

    async def _generate(self, token_ids: list[int], params: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        request_id = f"turn-{next(self._request_ids)}"
        try:
            outputs = [out async for out in self._engine.generate({"prompt_token_ids": token_ids}, params, request_id)]
        except EngineDeadError as error:
            self._policy = self._engine_config = None  # the next policy gets another engine
            raise PolicyError(
                "vLLM's engine ended during a turn, for the reason in its log above. If it cannot compute "
                "this model on this machine, set rollout.backend: transformers"
            ) from error
        return outputs[-1]

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._running_loop).result()

    @property
    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(self._loop,), name="vllm", daemon=True)
            self._thread.start()
        return self._loop


class Generates(Protocol):
    """An engine that generates after tokens."""

    async def generate(self, token_ids: list[int], params: Any) -> Any:
        """Output of the whole turn."""
        ...


class VLLMSession:
    """One conversation with all its tokens so far. The engine keeps them in its prefix cache."""

    def __init__(self, engine: Generates, stop_ids: frozenset[int]) -> None:
        self._engine = engine
        self._stop_ids = stop_ids
        self._ids: list[int] = []
        self.turns = 0
        """Turns of the conversation so far, which the random numbers of the next turn depend on."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """See `Session.generate`."""
        self._ids += prompt.new_ids
        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            max_tokens=sampling.max_new_tokens,
            seed=sampling.turn_seed(self.turns),
            logprobs=sampling.top_logprobs,
            stop_token_ids=sorted(self._stop_ids),
            ignore_eos=True,  # the stop tokens are all given
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        request_output = await self._engine.generate(list(self._ids), params)
        output = request_output.outputs[0]
        ids = list(output.token_ids)
        if output.finish_reason not in ("stop", "length") or len(output.logprobs) != len(ids):
            raise PolicyError(f"vLLM ended a turn by {output.finish_reason!r} after {len(ids)} tokens. See its log")
        logprobs = [float(step[token].logprob) for step, token in zip(output.logprobs, ids, strict=True)]
        self.turns += 1
        self._ids += ids
        stopped = ids[-1] in self._stop_ids
        return Generation(
            token_ids=ids,
            logprobs=logprobs if sampling.unfiltered else None,
            stop="stop" if stopped else "length",
            top_logprobs=[_likeliest(step, sampling.top_logprobs) for step in output.logprobs]
            if sampling.top_logprobs
            else None,
        )

    def fork(self, tokens: int) -> VLLMSession:
        """See `ForkableSession.fork`."""
        session = copy(self)
        session._ids = self._ids[:tokens]
        return session

    def close(self) -> None:
        """Nothing to release, because the engine evicts prefixes by itself."""


def _likeliest(step: Mapping[int, Any], count: int) -> tuple[tuple[int, float], ...]:
    """The `count` likeliest tokens, likeliest first. vLLM adds the sampled token, which is left out if unlikely."""
    logprobs = ((token, float(entry.logprob)) for token, entry in step.items())
    return tuple(sorted(logprobs, key=lambda item: -item[1])[:count])


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    for task in asyncio.all_tasks(loop):  # readers of the engine's output
        task.cancel()
        loop.run_until_complete(asyncio.wait((task,)))
    loop.close()


def _weight_files(folder: Path) -> list[Path]:
    """Files of a model's or of adapters' weights, without a checkpoint's optimizer and critic files."""
    return sorted(folder.glob("*model*.safetensors"))


def _files_hash(*folders: Path) -> str:
    digest = hashlib.sha256()
    for path in [path for folder in folders for path in _weight_files(folder)]:
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


engine = Engine()
atexit.register(engine.close)
