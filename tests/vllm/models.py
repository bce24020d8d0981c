"""The shipped model in a form that vLLM's kernels for CPUs compute: heads of 64 values in place of 40."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors.torch import load_file

from grpo.policy.tokenizer import load_tokenizer
from grpo.policy.transformers.model import TransformersPolicy, load
from tests.places import DESK_MODEL

HEAD = 64
"""vLLM 0.32 has attention kernels for CPUs for heads of 32, 64, 80, 96, 112, 128, 160, 192, 224, 256 and 512."""


def widen_heads(folder: Path) -> None:
    """Write the desk's model with zeros in the new places of each head: the same function of the same tokens.

    Value j of a head of d is turned by the angle p θ^(-2j/d), paired with value j + d/2; attention is divided by √d.

        places     0 … 19 → 0 … 19,  20 … 39 → 32 … 51
        angles     θ' = θ^(64/40), so that θ'^(-2j/64) = θ^(-2j/40)
        division   queries times √(64/40)
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(DESK_MODEL)
    old = config.head_dim
    places = torch.cat([torch.arange(old // 2), HEAD // 2 + torch.arange(old // 2)])
    config.head_dim = HEAD
    theta = json.loads((DESK_MODEL / "config.json").read_text())["rope_parameters"]["rope_theta"]
    config.rope_parameters = {"rope_type": "default", "rope_theta": theta ** (HEAD / old)}
    weights = load_file(DESK_MODEL / "model.safetensors")
    for name, weight in weights.items():
        part = name.split(".")[-2]
        if part in ("q_proj", "k_proj", "v_proj"):
            heads = weight.reshape(-1, old, weight.shape[1])
            wide = torch.zeros(len(heads), HEAD, weight.shape[1])
            wide[:, places] = heads * (math.sqrt(HEAD / old) if part == "q_proj" else 1.0)
            weights[name] = wide.reshape(-1, weight.shape[1])
        elif part == "o_proj":
            heads = weight.reshape(len(weight), -1, old)
            wide = torch.zeros(len(weight), heads.shape[1], HEAD)
            wide[:, :, places] = heads
            weights[name] = wide.reshape(len(weight), -1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}  # tied to the embedding
    model.tie_weights()
    TransformersPolicy(model, load_tokenizer(DESK_MODEL)).save(folder)


def shifted(folder: Path, target: Path, *, std: float, seed: int) -> None:
    """Write another version of a model: noise on all weights."""
    policy = load(folder)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(std * torch.randn(parameter.shape, generator=generator))
    policy.save(target)
