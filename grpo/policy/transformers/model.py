"""Loading, hashing and saving causal language models; the models that this process already holds."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from grpo.errors import PolicyError
from grpo.policy.model_files import ADAPTERS, check_model_files
from grpo.policy.policy import Sampler
from grpo.policy.transformers.adapters import has_adapters, load_adapters, merge_adapters
from grpo.policy.transformers.attention import IMPLEMENTATION
from grpo.policy.transformers.quantization import Quantization, bitsandbytes_config
from grpo.policy.transformers.sampler import SlotSampler
from grpo.policy.transformers.sharding import gather_full
from grpo.renderers.chat_template import Renderer

disable_progress_bar()


class TransformersPolicy:
    """A causal language model in this process, with the tokenizer that it was trained with."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        if model.config._attn_implementation != IMPLEMENTATION:
            model.set_attn_implementation(IMPLEMENTATION)
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.hash = weights_hash(model)

    @property
    def max_context(self) -> int:
        """Most tokens that the model can read."""
        return int(self.model.config.max_position_embeddings)

    @property
    def merged_hash(self) -> str | None:
        """Hash of the weights once the adapters are merged in, as a run may start from them; None without adapters."""
        return weights_hash(merge_adapters(self.model)) if has_adapters(self.model) else None

    def sampler(self, *, concurrency: int, renderer: Renderer) -> AbstractAsyncContextManager[Sampler]:
        """See `Policy.sampler`."""
        return SlotSampler(
            self.model,
            stop_id=renderer.stop_id,
            concurrency=concurrency,
            max_context=self.max_context,
        )

    def save(self, folder: Path, *, write: bool = True) -> None:
        """Write config, safetensors weights, tokenizer and chat template.

        All processes that share a model must ask; those that do not `write` only give their part.
        """
        tied: dict[int, torch.Tensor] = {}
        weights = {
            name: tied.setdefault(id(tensor), gather_full(tensor.detach()))
            for name, tensor in self.model.state_dict(keep_vars=True).items()
        }
        if not write:
            return
        self.model.save_pretrained(folder, state_dict=weights, safe_serialization=True)
        self.tokenizer.save_pretrained(folder)


def weights_hash(model: PreTrainedModel) -> str:
    """Digest of names, shapes and bytes of all weights, first 16 hex digits: the version of the policy."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(gather_full(tensor).detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def load_tokenizer(folder: Path, *, chat_template: str | None = None) -> PreTrainedTokenizerBase:
    """Load a tokenizer; `chat_template` replaces the one in the folder."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise PolicyError(f"no tokenizer in {folder}: {error}; add tokenizer.json") from error
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    return tokenizer


def load(
    folder: Path,
    *,
    chat_template: str | None = None,
    base: Path | None = None,
    quantization: Quantization | None = None,
) -> TransformersPolicy:
    """Load a policy from a folder with config.json, *.safetensors and tokenizer files, in float32.

    A folder with adapters only needs the folder of their `base`. Models go to the accelerator where there is one.
    Raises `PolicyError` when the folder or a file is missing, when weights are only there as pickles or of another
    architecture than config.json says, and for a quantization that this machine cannot do.
    """
    if (check_model_files(folder) / ADAPTERS).is_file():
        return _load_adapted(folder, base)
    stored = bitsandbytes_config(quantization) if quantization is not None else None
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            str(folder),
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            attn_implementation=IMPLEMENTATION,
            output_loading_info=True,
            local_files_only=True,
            quantization_config=stored,
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise PolicyError(f"cannot load the model in {folder}: {error}") from error
    strange = {key: sorted(map(str, names))[:3] for key, names in report.items() if names and "keys" in key}
    if strange:
        architecture = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures")
        raise PolicyError(f"weights in {folder} are not those of {architecture}: {strange}")
    if not getattr(model, "is_quantized", False):  # those are placed as they are loaded
        model.to("cuda" if torch.cuda.is_available() else "cpu")
    return TransformersPolicy(model, load_tokenizer(folder, chat_template=chat_template))


def _load_adapted(folder: Path, base: Path | None) -> TransformersPolicy:
    if base is None:
        raise PolicyError(f"{folder} holds adapters only; give the folder of the model that they are for")
    model = load(base).model
    load_adapters(model, folder)
    return TransformersPolicy(model, load_tokenizer(folder))


class ModelCache:
    """The policies that this process holds in memory, by hash: a stage finds what the one before it left.

    Holds at most `limit` policies; the one unused for longest goes first.
    """

    def __init__(self, limit: int = 3) -> None:
        self._limit = limit
        self._policies: dict[str, TransformersPolicy] = {}
        self._lock = threading.Lock()

    def put(self, policy: TransformersPolicy) -> None:
        """Keep a policy for the next stage."""
        with self._lock:
            self._policies[policy.hash] = policy
            self._trim(policy.hash)

    def get(self, policy_hash: str, folder: Path, *, base: Path | None = None) -> TransformersPolicy:
        """The policy with this hash: from memory, else loaded from `folder` and checked against the hash.

        `base` is where the model of a folder with adapters lies.
        """
        with self._lock:
            policy = self._policies.pop(policy_hash, None)
            if policy is None:
                policy = load(folder, base=base)
                if policy.hash != policy_hash:
                    raise PolicyError(f"{folder} holds policy {policy.hash}, expected {policy_hash}")
            self._policies[policy_hash] = policy
            self._trim(policy_hash)
            return policy

    def take(self, policy_hash: str, folder: Path, *, base: Path | None = None) -> TransformersPolicy:
        """Like `get`, and remove it: the caller is about to change its weights."""
        policy = self.get(policy_hash, folder, base=base)
        with self._lock:
            self._policies.pop(policy_hash, None)
        return policy

    def _trim(self, newest: str) -> None:
        for policy_hash in self._oldest():
            if len(self._policies) <= self._limit:
                return
            if policy_hash != newest:
                del self._policies[policy_hash]

    def _oldest(self) -> Iterable[str]:
        return list(self._policies)


model_cache = ModelCache()
