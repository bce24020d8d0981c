"""Policies and their inference backends by model address.

data/models/desk_clerk                        a model folder, in this process
vllm://data/models/desk_clerk                 a model folder, in a vLLM engine
openai+https://api.openai.com/v1#gpt-4.1      a chat-completions server
openai-tokens+http://localhost:8000/v1#clerk  a completions server that reads and returns token ids, such as vLLM's
stub://replies.yaml                           a script

Only model folders are trained; the others are evaluated.
"""

from __future__ import annotations

from pathlib import Path

from grpo.artifacts import local_path
from grpo.errors import PolicyError
from grpo.policy.model_files import check_model_files
from grpo.policy.policy import Policy
from grpo.policy.scripted import ScriptedPolicy, read_replies

CHAT, TOKENS, VLLM, STUB = "openai", "openai-tokens", "vllm", "stub"


def open_policy(address: str | Path, *, chat_template: str | None = None, policy_hash: str | None = None) -> Policy:
    """Open the policy at an address, see the module.

    `chat_template` is for model folders without one; `policy_hash` names the weights that a completions server or
    vLLM serves. Raises `PolicyError` for an unknown kind of address, or a backend that is not installed.
    """
    kind, separator, rest = str(address).partition("://")
    if not separator:
        from grpo.policy.transformers.model import load

        return load(Path(address), chat_template=chat_template)
    if kind == STUB:
        return ScriptedPolicy(read_replies(Path(rest)))
    if kind == VLLM:
        from grpo.policy.vllm import VLLMPolicy

        return VLLMPolicy(Path(rest), policy_hash=policy_hash, chat_template=chat_template)
    protocol, _, scheme = kind.partition("+")
    if protocol in (CHAT, TOKENS) and scheme in ("http", "https"):
        from grpo.policy.openai import ChatPolicy, CompletionsPolicy
        from grpo.policy.openai_endpoint import OpenAIEndpoint

        endpoint = OpenAIEndpoint.from_address(f"{scheme}://{rest}")
        return ChatPolicy(endpoint) if protocol == CHAT else CompletionsPolicy(endpoint, policy_hash=policy_hash)
    raise PolicyError(
        f"no policy has an address of the kind {kind}://; use a model folder, {VLLM}://folder, {STUB}://replies.yaml, "
        f"{CHAT}+http(s)://host/v1#model or {TOKENS}+http(s)://host/v1#model"
    )


def model_folder(model: str) -> Path:
    """Local folder of `policy.model`, downloaded if it is an artifact in an object store.

    Raises `PolicyError` for a server or script, which cannot be trained, and for a path that is not a model.
    """
    kind, separator, _ = model.partition("://")
    if separator and kind.partition("+")[0] in (CHAT, TOKENS, VLLM, STUB):
        raise PolicyError(
            f"policy.model is an address of the kind {kind}://, which can be evaluated, not trained; set it to a "
            "folder with config.json and safetensors weights"
        )
    return check_model_files(local_path(model))
