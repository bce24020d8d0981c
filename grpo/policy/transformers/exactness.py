"""Choice of a model's forward path by comparison with its own plain forward pass.

Candidates, in order:

1. flat attention with shared prefixes and slots
2. the model's own masks and cache on padded batches
3. the same on batches of conversations of one length
4. the same without the cache

A short batch of conversations with several turns is sampled and scored on a candidate. Then plain forward passes score
it again, one conversation at a time, without cache, prefix sharing or padding. During the comparison windows are
shortened, so that the conversations exceed them. Weights in another dtype are cast to float32, because the rounding of
bfloat16 would hide that a path computes something else.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from transformers import PreTrainedModel

from grpo.errors import CapacityError, PolicyError
from grpo.policy.policy import Prompt, Sampling
from grpo.policy.transformers.forward.attention import IMPLEMENTATION
from grpo.policy.transformers.forward.head import language_model_head
from grpo.policy.transformers.forward.passes import (
    ForwardPath,
    hidden_states,
    is_out_of_memory,
    microbatches,
    token_batch,
)
from grpo.policy.transformers.sampling.catalog import make_sampler

_LENGTHS = (
    "sliding_window", "sliding_window_size", "window_size", "attention_window_size", "attention_chunk_size",
    "keep_window_size", "index_topk", "index_block_size", "indexer_budget", "floor_scale", "log_scaling_n_floor",
)  # fmt: skip
"""Settings of configs and layers that change attention only beyond a length, which short conversations do not reach."""
_SHORT = 8
_TURNS = (
    ((14, 6), (5, 4), (3, 6)),
    ((14, 4), (3, 7), (6, 3)),
    ((9, 7), (7, 2), (4, 5)),
    ((7, 3), (5, 4)),
)
"""(new prompt tokens, generated tokens) of each turn of each conversation.

The first two have the same first prompt. The third begins like it. The fourth comes later and begins otherwise.
"""
_SHARED = 6
"""Tokens that the prompts of the first three conversations begin with."""
_TOLERANCE = 1e-4
"""Largest error of a log-probability, relative if its size is above 1, and largest relative error of the gradient."""
_GRADIENT_ELEMENTS = 2**22
"""Elements of the gradient that are compared, smallest tensors first, so that most models have some in every layer."""


class PathCheck(BaseModel):
    """Forward path of a model and what the comparison with its plain forward pass measured, in float32."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: ForwardPath
    attention: str
    """Attention implementation of transformers."""
    logprob_error: float
    """Largest difference of the sampled tokens' log-probabilities, of rollout and learner."""
    gradient_error: float
    """|gradient − plain gradient| / |plain gradient|."""
    rejected: tuple[str, ...] = ()
    """Paths that were tried before, each with the reason why it was rejected."""

    def __str__(self) -> str:
        exact = f"log-probabilities within {self.logprob_error:.1e}, gradient within {self.gradient_error:.1e}"
        return f"{self.path} ({self.attention}): {exact} of a plain forward pass"


_results: dict[str, PathCheck] = {}
_lock = threading.Lock()


@torch.inference_mode(False)  # gradients are needed even if the caller has them off
def choose_path(model: PreTrainedModel, policy_hash: str) -> PathCheck:
    """Set the attention implementation of the first exact path, compared once per policy version and process.

    Raises `PolicyError` if no path computes the model exactly, if the model is not causal, or if its weights are not
    finite, and `CapacityError` if memory runs out in the comparison.
    """
    original = "eager" if model.config._attn_implementation == IMPLEMENTATION else model.config._attn_implementation
    key = _compared(model, policy_hash)
    with _lock:
        if key not in _results:
            _results[key] = _compare(model, original)
        result = _results[key]
    _set_path(model, result.path, result.attention)
    return result


def set_path(model: PreTrainedModel, check: PathCheck) -> None:
    """Set the forward path that an earlier comparison of the same policy has chosen."""
    _set_path(model, check.path, check.attention)


def _compared(model: PreTrainedModel, policy_hash: str) -> str:
    """Key of weights, class, config and device, on which the forward pass of a model depends in any dtype."""
    config = {key: value for key, value in model.config.to_dict().items() if key not in ("_name_or_path", "dtype")}
    return json.dumps([policy_hash, type(model).__name__, model.device.type, config], sort_keys=True, default=str)


def _compare(model: PreTrainedModel, original: str | None) -> PathCheck:
    broken = [name for name, parameter in model.named_parameters() if not _is_finite(parameter)]
    if broken:
        raise PolicyError(
            f"{type(model).__name__} is refused, because its weights hold NaN or infinite values, {len(broken)} "
            f"tensors, the first {broken[0]}. Fetch or save the model again"
        )
    candidates: list[tuple[ForwardPath, str]] = [("flat", IMPLEMENTATION)]
    own = tuple(dict.fromkeys((original or "eager", "eager")))
    paths: tuple[ForwardPath, ...] = ("padded", "unpadded", "uncached")
    candidates += [(path, name) for path in paths for name in own]
    rejected: list[str] = []
    with _short_lengths(model), _in_float32(model):
        for path, attention in candidates:
            label = f"{path} ({attention})"
            try:
                _set_path(model, path, attention)
                logprob_error, gradient_error = _errors(model)
            except PolicyError:
                raise
            except Exception as error:  # a model's own code can fail in any way on a path that it was not made for
                if is_out_of_memory(error):
                    raise CapacityError(
                        f"memory ran out in the comparison of {type(model).__name__} with its plain forward pass. "
                        "Choose a smaller model"
                    ) from error
                rejected.append(f"{label}: {type(error).__name__}: {' '.join(str(error).split())[:160]}")
                continue
            if logprob_error <= _TOLERANCE and gradient_error <= _TOLERANCE:
                return PathCheck(
                    path=path,
                    attention=attention,
                    logprob_error=logprob_error,
                    gradient_error=gradient_error,
                    rejected=tuple(rejected),
                )
            rejected.append(f"{label}: off by {logprob_error:.1e} nats, gradient by {gradient_error:.1e}")
    raise PolicyError(
        f"{type(model).__name__} is refused, because no forward path agrees with its plain forward pass: "
        f"{'; '.join(rejected)}. Choose a model of another family (docs/internals/models.md)"
    )


def _is_finite(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor.detach().to(torch.float32)).all())


def _set_path(model: PreTrainedModel, path: ForwardPath, name: str) -> None:
    """Set path and attention implementation. Raises `TypeError` if the model does not accept the implementation."""
    model.forward_path = path
    if model.config._attn_implementation != name:
        model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise TypeError("attention classes of its own")


@contextmanager
def _short_lengths(model: PreTrainedModel) -> Iterator[None]:
    """Shorten windows, chunks and the like to `_SHORT` positions inside the context."""
    holders: list[Any] = [module for module in model.modules() if not isinstance(module, PreTrainedModel)]
    holders += {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}.values()
    before = [
        (holder, name, vars(holder)[name])
        for holder in holders
        for name in _LENGTHS
        if isinstance(vars(holder).get(name), int) and vars(holder)[name] > _SHORT
    ]
    try:
        for holder, name, _ in before:
            setattr(holder, name, _SHORT)
        yield
    finally:
        for holder, name, value in before:
            setattr(holder, name, value)


@contextmanager
def _in_float32(model: PreTrainedModel) -> Iterator[None]:
    """Hold the model's floating-point weights in float32 inside the context."""
    before = [
        (tensor, tensor.data)
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.is_floating_point() and tensor.dtype != torch.float32
    ]
    try:
        for tensor, data in before:
            tensor.data = data.float()
        yield
    finally:
        for tensor, data in before:
            tensor.data = data


@dataclass(frozen=True, slots=True)
class _Conversation:
    """Sampled conversation with the log-probabilities of the path under comparison."""

    token_ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    sampler_logprobs: torch.Tensor  # [loss tokens]


def _errors(model: PreTrainedModel) -> tuple[float, float]:
    """Largest relative error of the log-probabilities of sampler and learner, and error of the learner's gradient."""
    conversations = _sample(model)
    parameters = _compared_parameters(model)
    required = [parameter.requires_grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        with torch.enable_grad():
            learner = _learner_logprobs(model, conversations)
            gradient = _flat_gradient(learner, parameters)
            with _plain_attention(model):
                plain = torch.cat([_plain_logprobs(model, conversation) for conversation in conversations])
                plain_gradient = _flat_gradient(plain, parameters)
    finally:
        for parameter, requires_grad in zip(parameters, required, strict=True):
            parameter.requires_grad_(requires_grad)
    sampler = torch.cat([conversation.sampler_logprobs for conversation in conversations]).to(plain.device)
    scale = plain.detach().abs().clamp(min=1.0)
    differences = torch.stack([sampler, learner.detach()]) - plain.detach()
    distance = torch.linalg.vector_norm(gradient - plain_gradient) / torch.linalg.vector_norm(plain_gradient)
    return float((differences.abs() / scale).max()), float(distance)


def _sample(model: PreTrainedModel) -> list[_Conversation]:
    """Conversations in several turns, sampled by the path's sampler."""
    # in its own thread, because the caller may be inside an event loop
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, _converse(model)).result()


async def _converse(model: PreTrainedModel) -> list[_Conversation]:
    text_ids = _text_token_ids(model)
    sampler = make_sampler(model, stop_ids=(), concurrency=len(_TURNS), max_context=2**20, min_shared_prefix=_SHARED)
    begun = asyncio.Event()

    async def converse(index: int, turns: Sequence[tuple[int, int]]) -> _Conversation:
        session = sampler.open()
        token_ids: list[int] = []
        mask: list[bool] = []
        logprobs: list[float] = []
        if index == len(_TURNS) - 1:
            await begun.wait()
        for turn, (new, generated) in enumerate(turns):
            prompt = _prompt(text_ids, index, turn, new)
            sampling = Sampling(temperature=1.0, max_new_tokens=generated, seed=index)
            generation = await session.generate(Prompt(new_ids=prompt), sampling)
            assert generation.logprobs is not None
            begun.set()
            token_ids += [*prompt, *generation.token_ids]
            mask += [False] * len(prompt) + [True] * len(generation.token_ids)
            logprobs += generation.logprobs
        session.close()
        return _Conversation(np.array(token_ids, dtype=np.int32), np.array(mask), torch.tensor(logprobs))

    async with sampler:
        return list(await asyncio.gather(*(converse(index, turns) for index, turns in enumerate(_TURNS))))


def _prompt(text_ids: NDArray[np.int64], index: int, turn: int, new: int) -> list[int]:
    """New prompt tokens of a turn; see `_TURNS`."""
    own = np.random.default_rng([turn, index]).choice(text_ids, size=new)
    first = np.random.default_rng([turn, 0]).choice(text_ids, size=new)
    shared = 0 if turn else (0, new, _SHARED, 0)[index]
    return [*first[:shared].tolist(), *own[shared:].tolist()]


def _text_token_ids(model: PreTrainedModel) -> NDArray[np.int64]:
    """Token ids of the vocabulary, without ids that the config names, e.g. for images, audio or padding."""
    named: set[int] = set()
    for config in (model.config, model.config.get_text_config()):
        named |= {value for key, value in config.to_dict().items() if "token" in key and isinstance(value, int)}
    return np.array(sorted(set(range(model.config.get_text_config().vocab_size)) - named))


def _compared_parameters(model: PreTrainedModel) -> list[torch.nn.Parameter]:
    """Smallest trainable parameters, up to `_GRADIENT_ELEMENTS`; if none is trainable, any parameters."""
    everything = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    parameters = [parameter for parameter in everything if parameter.requires_grad] or everything
    compared: list[torch.nn.Parameter] = []
    elements = 0
    for parameter in sorted(parameters, key=torch.nn.Parameter.numel):
        elements += parameter.numel()
        if compared and elements > _GRADIENT_ELEMENTS:
            break
        compared.append(parameter)
    return compared


def _flat_gradient(logprobs: torch.Tensor, parameters: Sequence[torch.nn.Parameter]) -> torch.Tensor:
    """Gradient of the summed log-probabilities, [elements]. It is 0 for parameters that do not affect them."""
    gradients = torch.autograd.grad(logprobs.sum(), list(parameters), allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(parameter) if gradient is None else gradient).flatten().float()
            for gradient, parameter in zip(gradients, parameters, strict=True)
        ]
    )


def _learner_logprobs(model: PreTrainedModel, conversations: Sequence[_Conversation]) -> torch.Tensor:
    """Log-probabilities of the loss tokens by the learner's forward pass, in order of the conversations."""
    logprobs: dict[int, torch.Tensor] = {}
    for micro in microbatches(model, conversations, max_tokens=2**20):
        batch = token_batch(model, micro)
        logits = language_model_head(model)(hidden_states(model, batch).index_select(0, batch.predictors))
        targets = torch.log_softmax(logits.float(), dim=-1).gather(1, batch.targets[:, None])[:, 0]
        lengths = [int(conversation.loss_mask.sum()) for conversation in micro]
        logprobs |= {id(c): part for c, part in zip(micro, torch.split(targets, lengths), strict=True)}
    return torch.cat([logprobs[id(conversation)] for conversation in conversations])


@contextmanager
def _plain_attention(model: PreTrainedModel) -> Iterator[None]:
    """Compute attention as the model's authors wrote it, if the implementation can be set."""
    before = model.config._attn_implementation
    if before is None or not model._can_set_attn_implementation():
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _plain_logprobs(model: PreTrainedModel, conversation: _Conversation) -> torch.Tensor:
    """Log-probabilities of the loss tokens by a forward pass over only this conversation.

    Raises `PolicyError` if the model's earlier logits depend on later tokens.
    """
    ids = torch.from_numpy(conversation.token_ids.astype(np.int64)).to(model.device)[None]
    distribution = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].float(), dim=-1)
    half = ids.shape[1] // 2
    with torch.no_grad():
        beginning = torch.log_softmax(model(input_ids=ids[:, :half], use_cache=False).logits[0].float(), dim=-1)
    if not torch.allclose(distribution[:half].detach(), beginning, rtol=1e-2, atol=_TOLERANCE * 10):
        raise PolicyError(
            f"{type(model).__name__} is refused, because its tokens attend to later ones, so that it is not causal"
        )
    targets = ids[0, conversation.loss_mask.nonzero()[0]]
    predictors = torch.from_numpy(conversation.loss_mask.nonzero()[0] - 1).to(model.device)
    return distribution[predictors].gather(1, targets[:, None])[:, 0]
