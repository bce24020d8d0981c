"""Quantized weights of the base under trained adapters (QLoRA, arXiv 2305.14314), and of published checkpoints."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal

import torch
from transformers import BitsAndBytesConfig, FineGrainedFP8Config, Mxfp4Config
from transformers.utils.quantization_config import QuantizationConfigMixin

from grpo.errors import PolicyError, install_command
from grpo.policy.model_files import quantization_of

Quantization = Literal["int8", "nf4"]
_DEQUANTIZED: dict[str, type[QuantizationConfigMixin]] = {"mxfp4": Mxfp4Config, "fp8": FineGrainedFP8Config}


def published_quantization(folder: Path) -> QuantizationConfigMixin | None:
    """Config that dequantizes the weights in `folder` when they are read, or None if they are not quantized."""
    quantization = quantization_of(folder)
    if not quantization:
        return None
    config: QuantizationConfigMixin = _DEQUANTIZED[quantization["quant_method"]].from_dict(
        {**quantization, "dequantize": True}
    )
    return config


def bitsandbytes_config(kind: Quantization) -> BitsAndBytesConfig:
    """bitsandbytes config for transformers. Raises `PolicyError` if the machine has no GPU or lacks the package."""
    if not torch.cuda.is_available():
        raise PolicyError(
            f"policy.quantization {kind} computes on an NVIDIA GPU, and this machine has none. Leave it out"
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise PolicyError(
            f"policy.quantization {kind} needs bitsandbytes, which is not installed. Call "
            f"{install_command('quantization')}"
        )
    if kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
