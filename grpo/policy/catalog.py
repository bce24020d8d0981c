"""Policies and their inference backends by model address.

data/models/desk_clerk                        a model in this process: a folder, org/name, file.gguf,
                                              models:/name@alias; see `grpo.policy.weights.sources`
vllm://data/models/desk_clerk                 the same model in a vLLM engine
openai+https://api.openai.com/v1#gpt-4.1      a chat-completions server
openai-tokens+http://localhost:8000/v1#clerk  a completions server that reads and returns token ids, such as vLLM's
stub://replies.yaml                           a script

Only models in this process can be trained. The others can be evaluated.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fsspec import available_protocols

from grpo.errors import PolicyError
from grpo.policy.policy import Policy
from grpo.policy.scripted import ScriptedPolicy, read_replies
from grpo.policy.weights.sources import ModelFiles, model_files, model_source

if TYPE_CHECKING:
    from grpo.policy.transformers.model import TransformersPolicy
    from grpo.policy.transformers.quantization import Quantization

CHAT, TOKENS, VLLM, STUB, SHIPPED = "openai", "openai-tokens", "vllm", "stub", "grpo"


def open_policy(address: str | Path, *, chat_template: str | None = None, policy_hash: str | None = None) -> Policy:
    """Open the policy at an address. For the kinds of addresses see the module.

    `chat_template` replaces the template of a model folder. `policy_hash` names the weights that a completions server
    or vLLM serves. Raises `PolicyError` if the kind of address is unknown or the backend is not installed, and the
    errors of `model_files`.
    """
    kind, _, rest = str(address).partition("://")
    if is_weights(str(address)):
        return load_weights(str(address), chat_template=chat_template)
    if kind == STUB:
        return ScriptedPolicy(read_replies(Path(rest)))
    if kind == VLLM:
        from grpo.policy.vllm import VLLMPolicy

        files = model_files(rest)
        return VLLMPolicy(files.folder, base=files.base, policy_hash=policy_hash, chat_template=chat_template)
    protocol, _, scheme = kind.partition("+")
    if protocol in (CHAT, TOKENS) and scheme in ("http", "https"):
        from grpo.policy.openai import ChatPolicy, CompletionsPolicy
        from grpo.policy.openai_endpoint import OpenAIEndpoint

        endpoint = OpenAIEndpoint.from_address(f"{scheme}://{rest}")
        return ChatPolicy(endpoint) if protocol == CHAT else CompletionsPolicy(endpoint, policy_hash=policy_hash)
    raise PolicyError(
        f"no policy has an address of the kind {kind}://. Use a model folder, org/name, file.gguf, models:/name@alias, "
        f"{VLLM}://folder, {STUB}://replies.yaml, {CHAT}+http(s)://host/v1#model or {TOKENS}+http(s)://host/v1#model"
    )


def load_weights(
    address: str, *, chat_template: str | None = None, quantization: Quantization | None = None
) -> TransformersPolicy:
    """Load the model at an address into this process, adapters with their base. Raises as `model_files` and `load`."""
    return load_files(model_files(address), chat_template=chat_template, quantization=quantization)


def load_merged(
    address: str, *, chat_template: str | None = None, quantization: Quantization | None = None
) -> TransformersPolicy:
    """Load the model at an address with its adapters merged into its weights. Raises as `load_weights`."""
    from grpo.policy.transformers.adapters import has_adapters, merge_adapters
    from grpo.policy.transformers.model import TransformersPolicy

    policy = load_weights(address, chat_template=chat_template, quantization=quantization)
    return TransformersPolicy(merge_adapters(policy.model), policy.tokenizer) if has_adapters(policy.model) else policy


def load_files(
    files: ModelFiles, *, chat_template: str | None = None, quantization: Quantization | None = None
) -> TransformersPolicy:
    """Load a model from its folder into this process, adapters with their base. Raises as `load`."""
    from grpo.policy.transformers.model import load

    return load(files.folder, base=files.base, chat_template=chat_template, quantization=quantization)


def is_weights(address: str) -> bool:
    """True if the address names weights that are loaded into this process."""
    kind, separator, _ = address.partition("://")
    return not separator or kind == SHIPPED or kind in available_protocols()


def check_trainable(model: str) -> None:
    """Raise `PolicyError` if the address names a server or script, because it has no weights to train."""
    kind, separator, _ = model.partition("://")
    if separator and kind.partition("+")[0] in (CHAT, TOKENS, VLLM, STUB):
        raise PolicyError(
            f"policy.model is an address of the kind {kind}://, which can be evaluated, not trained. Set it to a "
            "folder with config.json and safetensors weights, org/name, file.gguf or models:/name@alias"
        )


def pinned(address: str) -> str:
    """Address that names the same weights whenever it is read: `org/name` with its commit, an alias as its version."""
    kind, separator, rest = address.partition("://")
    if kind == VLLM:
        return f"{VLLM}://{pinned(rest)}"
    return address if separator else model_source(address).pinned
