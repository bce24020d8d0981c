"""Policy versions in the engine of a vLLM server, the turns that they generate, and their replacement.

    files ► version computed again from them ► turns in progress end ► weights loaded in place ► prefix cache dropped

The engine has one set of weights. Files arrive, and their version is computed, while turns of the version before go on.
So the pause lasts as long as the longest turn in progress and the time in which the workers read the files. No turn has
tokens of two versions, and no keys and values of the version before are left. Adapters are loaded next to the ones of
the version before, without a pause.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from transformers import AutoConfig, PretrainedConfig
from vllm.lora.request import LoRARequest

from grpo.errors import GRPOError, PolicyError
from grpo.policy.policy import Prompt, Sampling
from grpo.policy.servers.protocol import WEIGHTS, TurnReply, TurnRequest, WeightsReply, WeightsRequest
from grpo.policy.transformers.model import load
from grpo.policy.vllm import VLLMSession
from grpo.policy.weights.sources import ModelFiles
from grpo.serving.engine.weight_files import WeightFiles
from grpo.serving.protocol.api_errors import APIError, invalid_request
from grpo.serving.vllm_server.worker import METHOD, WeightLoader

WORKER = f"{WeightLoader.__module__}.{WeightLoader.__qualname__}"
_UNLIKE = frozenset({"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"})
"""Entries of a config that do not say what a model computes from its weights."""


@dataclass(slots=True, eq=False)
class _Version:
    """Policy version in the engine. With adapters it is `lora` on top of the weights."""

    engine: Any
    lora: LoRARequest | None
    running: int = 0
    """Turns in progress."""

    async def generate(self, token_ids: list[int], params: Any) -> Any:
        """Output of the engine after these tokens."""
        outputs = self.engine.generate(
            {"prompt_token_ids": token_ids}, params, f"turn-{uuid4().hex}", lora_request=self.lora
        )
        return [output async for output in outputs][-1]


class VLLMRollouts:
    """Policy versions in vLLM's engine. `engine` is vLLM's `AsyncLLM`."""

    def __init__(self, engine: Any, *, weights_bytes: int, api_servers: int) -> None:
        """`weights_bytes` bounds the uploaded files. `api_servers` is the number of processes that answer requests."""
        self.files = WeightFiles(weights_bytes)
        self.max_context = int(engine.model_config.max_model_len)
        self._engine, self._api_servers = engine, api_servers
        self._weights: Mapping[str, str] | None = None
        """Files of the weights in the engine, without adapters. None at first, and after a load that failed."""
        self._versions: dict[str, _Version] = {}
        """Versions whose turns can begin, the oldest first: one without adapters, and several with adapters."""
        self._one_load = asyncio.Lock()
        self._turn_ended = asyncio.Event()
        self._lora_ids = itertools.count(1)

    async def load(self, request: WeightsRequest) -> WeightsReply:
        """Load a version from uploaded files, unless it is loaded, or name the files that are missing.

        Loading goes on if the client goes away. Raises `APIError` 400 if the files are not the model of this version.
        """
        return await asyncio.shield(asyncio.create_task(self._load(request)))

    async def turn(self, request: TurnRequest) -> TurnReply:
        """Generate a turn. Cancelling this takes it out of the batch. Raises `APIError` 409 for another version."""
        room = self.max_context - len(request.token_ids)
        if room < 1:
            message = f"the turn has {len(request.token_ids)} tokens, and the context has {self.max_context}"
            raise invalid_request(message, param="token_ids", code="context_length_exceeded")
        if (version := self._versions.get(request.version)) is None:
            message = f"this server does not have the weights {request.version}. Load them with POST {WEIGHTS}"
            raise APIError(409, message, param="version", code="weights_not_loaded")
        session = VLLMSession(version, frozenset(request.stop_token_ids))
        session.turns = request.turn
        sampling = Sampling(
            temperature=request.temperature, max_new_tokens=min(request.max_new_tokens, room), seed=request.seed
        )
        version.running += 1
        try:
            generation = await session.generate(Prompt(new_ids=request.token_ids), sampling)
        finally:
            version.running -= 1
            self._turn_ended.set()
        assert generation.logprobs is not None
        return TurnReply(
            version=request.version,
            token_ids=tuple(generation.token_ids),
            logprobs=tuple(generation.logprobs),
            stop=generation.stop,
        )

    async def _load(self, request: WeightsRequest) -> WeightsReply:
        async with self._one_load:
            if request.version not in self._versions:
                self._check_options(adapters=bool(request.base))
                if missing := self.files.missing(request):
                    return WeightsReply(version=None, missing=missing)
                with self.files.folders(request) as files:
                    await asyncio.to_thread(self._check_files, files, request)
                    weights = request.base or request.files
                    if weights != self._weights:
                        await self._replace(files.base or files.folder, weights)
                    lora = await self._add_adapters(files.folder, request.version) if request.base else None
                self._versions[request.version] = _Version(self._engine, lora)
            return WeightsReply(version=request.version, max_context=self.max_context)

    async def _replace(self, folder: Path, weights: Mapping[str, str]) -> None:
        """Load the weights in a folder when the turns in progress have ended."""
        await self._end([*self._versions])
        self._weights = None  # a failed load leaves weights of two versions
        await self._engine.pause_generation(mode="wait", clear_cache=True)
        try:
            await self._engine.collective_rpc(METHOD, args=(str(folder),))
            if await self._engine.reset_prefix_cache() is False:
                raise PolicyError("vLLM did not drop its prefix cache after new weights. Restart the server")
        finally:
            await self._engine.resume_generation()
        self._weights = weights

    async def _add_adapters(self, folder: Path, version: str) -> LoRARequest:
        """Load adapters next to the ones of other versions. The oldest leave if the engine has no room for more.

        Raises `APIError` 400 if vLLM refuses them.
        """
        adapted = [name for name, other in self._versions.items() if other.lora is not None]
        surplus = len(adapted) + 1 - self._engine.vllm_config.lora_config.max_loras
        await self._end(adapted[: max(0, surplus)])
        lora = LoRARequest(lora_name=version, lora_int_id=next(self._lora_ids), lora_path=str(folder))
        try:
            await self._engine.add_lora(lora)
        except Exception as error:  # vLLM raises nothing narrower for adapters that do not fit its options
            raise invalid_request(f"vLLM refuses the adapters of {version}: {str(error)[:300]}") from error
        return lora

    async def _end(self, names: Sequence[str]) -> None:
        """Begin no turns of versions any more, wait until the ones in progress have ended, and remove adapters."""
        ending = [self._versions.pop(name) for name in names]
        while any(version.running for version in ending):
            self._turn_ended.clear()
            await self._turn_ended.wait()
        for version in ending:
            if version.lora is not None:
                await self._engine.remove_lora(version.lora.lora_int_id)

    def _check_files(self, files: ModelFiles, request: WeightsRequest) -> None:
        """Raise `APIError` 400 if the files are not the model of this version, or if the engine has another model."""
        try:
            policy = load(files.folder, base=files.base, device="cpu")
        except GRPOError as error:
            raise invalid_request(f"the files are not a model that can be loaded: {error}") from error
        if policy.hash != request.version:
            raise invalid_request(
                f"the files hold the weights {policy.hash}, not {request.version}. Send all files of one checkpoint",
                param="version",
            )
        if differing := self._differing(policy.model.config):
            raise invalid_request(
                f"vLLM was started with a model that has another {', '.join(differing)} in its config.json than the "
                "policy. Start it with the model of policy.model"
            )

    def _differing(self, config: PretrainedConfig) -> list[str]:
        """Names of the settings in which the model of the engine differs from a config."""
        wanted, model = config.to_dict(), self._engine.model_config
        given = AutoConfig.from_pretrained(model.model, revision=model.revision, trust_remote_code=False).to_dict()
        return sorted(name for name in wanted.keys() - _UNLIKE if given.get(name) != wanted[name])

    def _check_options(self, *, adapters: bool) -> None:
        """Raise `APIError` 400 if the server was started with options whose turns cannot be trained on."""
        config = self._engine.vllm_config
        on_cpu, chunked = config.device_config.device_type == "cpu", config.scheduler_config.enable_chunked_prefill
        options = {
            f"--worker-extension-cls {WORKER}": config.parallel_config.worker_extension_cls == WORKER,
            "--logprobs-mode processed_logprobs": config.model_config.logprobs_mode == "processed_logprobs",
            "--dtype float32": str(config.model_config.dtype) == "torch.float32",
            "--api-server-count 1": self._api_servers == 1,
            # a chunk of a seeded request rewinds its generator, but a CPU's generator cannot be rewound
            "--no-enable-chunked-prefill": not (on_cpu and chunked),
            # a graph that is compiled for a CPU keeps packed copies of the first weights
            "--enforce-eager": not on_cpu or config.model_config.enforce_eager,
            "--enable-lora --max-loras 2 --max-lora-rank N": config.lora_config is not None or not adapters,
        }
        if missing := [option for option, is_set in options.items() if not is_set]:
            raise invalid_request(f"turns of this vLLM server cannot be trained on. Start it with {' '.join(missing)}")
