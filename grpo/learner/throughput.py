"""How fast an update was, and what share of the accelerator's arithmetic it used."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from grpo.learner.precision import Precision

PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "A10": 125e12}
"""Dense bf16 and fp16 operations a second by the vendor's data sheet (SXM), the longer names first."""


def model_flops_utilization(model: PreTrainedModel, *, tokens_per_s: float, precision: Precision) -> float | None:
    """Share of the accelerator's peak that forward and backward passes used, 6 operations a weight and token.

    `tokens_per_s` counts tokens that really went through the model on one accelerator. Attention itself is not
    counted, and weights that stay as they are, under adapters, count as if they were trained. None where the peak is
    not known: on the CPU, in fp32, on an accelerator that is not in `PEAK_FLOPS`.
    """
    if model.device.type != "cuda" or precision == "fp32":
        return None
    name = torch.cuda.get_device_name(model.device)
    peak = next((flops for key, flops in PEAK_FLOPS.items() if key in name), None)
    if peak is None:
        return None
    weights = sum(parameter.numel() for parameter in model.parameters())
    return 6 * weights * tokens_per_s / peak
