"""Quantized base weights under trained adapters (QLoRA, arXiv 2305.14314)."""

from __future__ import annotations

import importlib.util
from typing import Literal

import torch
from transformers import BitsAndBytesConfig

from grpo.errors import PolicyError

Quantization = Literal["int8", "nf4"]


def bitsandbytes_config(kind: Quantization) -> BitsAndBytesConfig:
    """bitsandbytes config for transformers. Raises `PolicyError` on a machine without a GPU or the package."""
    if not torch.cuda.is_available():
        raise PolicyError(
            f"policy.quantization {kind} computes on an NVIDIA GPU, and this machine has none; leave it out"
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise PolicyError(
            f"policy.quantization {kind} needs bitsandbytes, which is not installed; pip install 'grpo[quantization]'"
        )
    if kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
