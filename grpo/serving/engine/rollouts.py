"""Rollouts of a trainer on this server: versions that the trainer uploads, and turns that they generate.

    trainer    weights ► named by digest ► missing files ► loaded: version = hash that this server has computed
               turn    ► version, tokens, seed ► engine ► tokens, log-probabilities, version

These versions are apart from the version that answers chats. They are not registered and do not answer chats, and
their turns are not in the serving log, because the trainer keeps them. A new version is loaded while turns of the last
one go on. Two versions stay loaded, so that two policies of an evaluation, or two runs, do not displace each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.agent import AgentConfig
from grpo.config.serving import EngineSettings
from grpo.errors import GRPOError, PolicyError
from grpo.policy.catalog import load_files
from grpo.policy.context import UNBOUNDED
from grpo.policy.renderer import make_renderer
from grpo.policy.servers.protocol import WeightsReply, WeightsRequest
from grpo.policy.weights.sources import ModelFiles
from grpo.renderers.time_limit import time_limit
from grpo.serving.background import in_background, stop
from grpo.serving.engine.engine import ProcessPolicy
from grpo.serving.engine.served_model import ServedModel, load, release
from grpo.serving.engine.versions import ServedVersion, Versions
from grpo.serving.engine.weight_files import WeightFiles
from grpo.serving.protocol.api_errors import APIError, invalid_request, overloaded

_MODEL = "rollout"
_TRIAL_S = 5.0
"""Time limit of trying the chat template of uploaded weights, in seconds of processor time. The published ones take up
to 0.6 s. The trial runs on a thread, but it slows the event loop down, because Python runs one thread at a time."""


class Rollouts:
    """Versions of rollouts. `weights_bytes` bounds the uploaded files on disk."""

    def __init__(self, settings: EngineSettings, *, weights_bytes: int) -> None:
        self.versions = Versions(settings)
        self.files = WeightFiles(weights_bytes)
        self._one_load = asyncio.Lock()

    @property
    def max_context(self) -> int:
        """Tokens of the largest context of the loaded versions. If none is loaded, the answer is 409 at any length."""
        return max((version.max_context for version in self.versions.loaded), default=UNBOUNDED)

    @asynccontextmanager
    async def running(self, watch_s: float, failed: Callable[[BaseException], None]) -> AsyncIterator[None]:
        """Retire versions that are idle or whose engines have ended, while the block runs. Then stop all of them.

        `failed` gets the error if versions cannot be retired any more.
        """
        watcher = in_background(self.versions.watch(lambda current: None, every_s=watch_s), failed)
        try:
            yield
        finally:
            await stop(watcher)
            await self.versions.close()
            self.files.close()

    async def load(self, request: WeightsRequest) -> WeightsReply:
        """Load a version from uploaded files, unless it is loaded, or name the files that are missing.

        Loading goes on if the client goes away. Raises `APIError` 400 if the files are not the model of this version.
        """
        return await asyncio.shield(asyncio.create_task(self._load(request)))

    def version_of(self, name: str) -> ServedVersion:
        """Loaded version with this hash. Raises `APIError` 409 if there is none, 503 if its engine is silent."""
        version = self._loaded(name)
        if version is None:
            message = f"this server has not loaded the weights {name}. Load them with POST /v1/rollout/weights"
            raise APIError(409, message, param="version", code="weights_not_loaded")
        if not version.answers:
            raise overloaded("the engine does not answer", retry_after_s=2.0)
        return version

    async def _load(self, request: WeightsRequest) -> WeightsReply:
        async with self._one_load:
            version = self._loaded(request.version)
            if version is None:
                if missing := self.files.missing(request):
                    return WeightsReply(version=None, missing=missing)
                await self.versions.add(await self._read(request))
                version = self._loaded(request.version)
        if version is None:
            return WeightsReply(version=None)
        return WeightsReply(version=version.served.policy.hash, max_context=version.max_context)

    async def _read(self, request: WeightsRequest) -> ServedModel:
        """Read the weights into an engine process, and compare their hash with the version of the request."""
        with self.files.folders(request) as files:
            try:
                served = await load(lambda current: _served(files, request.version), "")
            except GRPOError as error:
                raise invalid_request(f"the files are not a model that can be loaded: {error}") from error
        assert served is not None
        if served.policy.hash != request.version:
            await asyncio.to_thread(release, served)
            raise invalid_request(
                f"the files hold the weights {served.policy.hash}, not {request.version}. Send all files of one "
                "checkpoint",
                param="version",
            )
        return served

    def _loaded(self, name: str) -> ServedVersion | None:
        versions = (version for version in self.versions.loaded if version.served.version == name)
        return next((version for version in versions if version.stopped is None and not version.retired), None)


def _served(files: ModelFiles, version: str) -> ServedModel:
    policy = ProcessPolicy(partial(load_files, files))
    try:
        _try_template(policy)
    except BaseException:
        policy.close()
        raise
    agent = MultiTurnAgent(AgentConfig(model_name=_MODEL), policy=policy)
    return ServedModel(model=_MODEL, version=version, policy=policy, agent=agent)


def _try_template(policy: ProcessPolicy) -> None:
    """Raise `PolicyError` if no renderer can be made of the chat template, or not soon."""
    try:
        with time_limit(_TRIAL_S):
            make_renderer(policy.tokenizer)
    except TimeoutError as error:
        raise PolicyError(f"trying the chat template takes more than {_TRIAL_S:g} s") from error
