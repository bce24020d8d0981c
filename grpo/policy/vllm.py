"""A policy played by a vLLM engine in this process: the weights of a checkpoint folder, loaded into one engine.

The engine stays while the policy changes: the weights of the next checkpoint are loaded over those of the last, and
the cache of prefixes, which were read with the old weights, is dropped. It runs on an event loop of its own, because
an engine cannot outlive the loop that it was made in and every stage has another one.

Log-probabilities are those of the distribution at the sampling temperature, nothing cut off, in float32. The kernels
are not the learner's, so they differ from its own in the last digits: see `training.ratio_tolerance`.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from grpo.errors import PolicyError
from grpo.policy.policy import Generation, Prompt, Sampling
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
    """The policy in a model folder, played by the engine of this process."""

    def __init__(
        self,
        folder: Path,
        *,
        policy_hash: str | None = None,
        max_context: int | None = None,
        gpu_memory_utilization: float = 0.9,
        chat_template: str | None = None,
    ) -> None:
        """`policy_hash` names the weights; without it the digest of the weight files does.

        `max_context` makes room for shorter conversations than the model could read; `gpu_memory_utilization` is what the
        engine takes of the GPU, for weights and cache.
        """
        try:
            self.config = (folder / "config.json").read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise PolicyError(
                f"no model in {folder}: config.json is missing; set policy.model to a model folder"
            ) from error
        readable = json.loads(self.config).get("max_position_embeddings")
        if readable is None:
            raise PolicyError(
                f"{folder}/config.json has no max_position_embeddings; only language models can be played"
            )
        self.folder = folder
        self.hash = policy_hash or _files_hash(folder)
        self.max_context = min(int(readable), max_context or int(readable))
        self.gpu_memory_utilization = gpu_memory_utilization
        self.tokenizer = load_tokenizer(folder, chat_template=chat_template)

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[VLLMSampler]:
        """See `Policy.sampler`; waits while the engine plays another policy."""
        engine.take(self)
        try:
            yield VLLMSampler(engine, renderer.stop_id)
        finally:
            engine.give_back()


class Engine:
    """The one engine of this process, and which policy it holds."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._made_for: tuple[str, int, float] | None = None
        self._policy: str | None = None
        self._users = 0
        self._turn = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._names = itertools.count()

    def take(self, policy: VLLMPolicy) -> None:
        """Hold this policy until it is given back; waits for those who use another one."""
        with self._turn:
            while self._users and self._policy != policy.hash:
                self._turn.wait()
            if self._policy != policy.hash:
                self._load(policy)
            self._users += 1

    def give_back(self) -> None:
        """One user less."""
        with self._turn:
            self._users -= 1
            self._turn.notify_all()

    def close(self) -> None:
        """Free the memory; the next policy starts another engine."""
        with self._turn:
            if self._engine is not None:
                self._engine.shutdown()
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._engine = self._loop = self._policy = self._made_for = None

    async def generate(self, token_ids: list[int], params: Any) -> Any:
        """What the engine says after these tokens; when this is cancelled the engine drops the request."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._ask(token_ids, params), self._running))

    def _load(self, policy: VLLMPolicy) -> None:
        """Put the policy's weights into the engine; another architecture or size needs another engine."""
        made_for = (policy.config, policy.max_context, policy.gpu_memory_utilization)
        if self._made_for != made_for:
            self.close()
            self._engine = self._do(self._start(policy))
            self._made_for = made_for
        else:
            self._policy = None  # half loaded it is nobody's
            self._do(self._reload(policy.folder))
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

    async def _ask(self, token_ids: list[int], params: Any) -> Any:
        name = f"turn-{next(self._names)}"
        answers = [answer async for answer in self._engine.generate({"prompt_token_ids": token_ids}, params, name)]
        return answers[-1]

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._running).result()

    @property
    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(self._loop,), name="vllm", daemon=True).start()
        return self._loop


@dataclass(frozen=True, slots=True)
class VLLMSampler:
    """Serves conversations; how many at once is for the engine to say."""

    engine: Engine
    stop_id: int

    def open(self) -> VLLMSession:
        """See `Sampler.open`."""
        return VLLMSession(self)


class VLLMSession:
    """One conversation: all tokens of it so far, which the engine finds in its prefix cache."""

    def __init__(self, sampler: VLLMSampler) -> None:
        self._sampler = sampler
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
            stop_token_ids=[self._sampler.stop_id],
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        answer = await self._sampler.engine.generate(list(self._ids), params)
        said = answer.outputs[0]
        ids = list(said.token_ids)
        if said.finish_reason not in ("stop", "length") or len(said.logprobs) != len(ids):
            raise PolicyError(f"vLLM ended a turn by {said.finish_reason!r} after {len(ids)} tokens; see its log")
        logprobs = [float(step[token].logprob) for step, token in zip(said.logprobs, ids, strict=True)]
        self._turns += 1
        self._ids += ids
        stopped = ids[-1] == self._sampler.stop_id
        return Generation(
            token_ids=ids, logprobs=logprobs if sampling.unfiltered else None, stop="stop" if stopped else "length"
        )

    def close(self) -> None:
        """Nothing is held: the engine forgets prefixes by itself."""


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _files_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


engine = Engine()
