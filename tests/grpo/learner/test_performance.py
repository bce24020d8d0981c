"""Precision, memory and speed of a training pass."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo.errors import ConfigError
from grpo.learner.performance import (
    Precision,
    activation_checkpointing,
    autocast,
    loss_scaler,
    model_flops_utilization,
)
from grpo.policy.transformers.model import load
from tests.models.families import tiny_model

CPU = torch.device("cpu")
IDS = torch.arange(5, 25)[None]


@pytest.fixture
def model(tiny_folder: Path) -> PreTrainedModel:
    return load(tiny_folder).model


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_matrices_are_multiplied_in_the_precision_of_the_pass(precision: Precision, dtype: torch.dtype):
    """Weights stay in float32, and outside of the block results are, too."""
    layer = nn.Linear(2, 2)
    with autocast(precision, CPU):
        assert layer(torch.ones(1, 2)).dtype == dtype
    assert layer(torch.ones(1, 2)).dtype == layer.weight.dtype == torch.float32


def test_only_losses_in_fp16_are_scaled():
    """By 4096 at first; 1 stays 1 in the other precisions."""
    assert float(loss_scaler("fp16", CPU).scale(torch.ones(()))) == 4096
    for precision in ("fp32", "bf16"):
        scaler = loss_scaler(precision, CPU)  # type: ignore[arg-type]
        assert (scaler.is_enabled(), float(scaler.scale(torch.ones(())))) == (False, 1)


def _gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(input_ids=IDS).logits.square().mean().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_activation_checkpointing_gives_the_same_gradient(model: PreTrainedModel):
    """Only the layers are in training mode in the block, and each computes twice; none is afterwards."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    assert len(layers) == 2
    passed: list[object] = []
    layers[0].mlp.register_forward_pre_hook(lambda module, inputs: passed.append(module))
    plain = _gradients(model)
    assert len(passed) == 1
    with activation_checkpointing(model):
        assert [module for module in model.modules() if module.training] == layers
        again = _gradients(model)
        assert len(passed) == 3
    assert not [module for module in model.modules() if module.training]
    assert all(torch.allclose(again[name], gradient, atol=1e-7) for name, gradient in plain.items())
    _gradients(model)
    assert len(passed) == 4


def test_activations_are_kept_again_after_an_error(model: PreTrainedModel):
    """A pass that failed leaves the model as it was."""
    with pytest.raises(RuntimeError, match="in the pass"), activation_checkpointing(model):
        raise RuntimeError("in the pass")
    assert not [module for module in model.modules() if module.training]
    assert not any(
        module.gradient_checkpointing for module in model.modules() if hasattr(module, "gradient_checkpointing")
    )


@pytest.mark.parametrize("family", ["opt", "bloom", "gpt_bigcode"])
def test_layers_in_training_mode_drop_nothing(family: str):
    """Their configs have a dropout of .1, and the layers of OPT hold the rate themselves; it is back afterwards."""
    model = tiny_model(family)
    plain, rates = _gradients(model), _dropout_rates(model)
    with activation_checkpointing(model):
        again = _gradients(model)
    assert all(torch.allclose(again[name], gradient, rtol=1e-4, atol=1e-6) for name, gradient in plain.items())
    assert _dropout_rates(model) == rates


def _dropout_rates(model: PreTrainedModel) -> list[object]:
    return [value for module in model.modules() for name, value in vars(module).items() if "drop" in name]


def test_a_model_whose_layers_cannot_be_recomputed_is_refused():
    """CTRL's layers are plain modules, which would keep their activations."""
    refused = pytest.raises(ConfigError, match=r"the layers of CTRLLMHeadModel cannot be recomputed\. Turn it off")
    with refused, activation_checkpointing(tiny_model("ctrl")):
        pass


class OnAccelerator(nn.Module):
    """A model of 1,000,000 weights on a device of this type."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1000, 1000, device="meta"))
        self.device = SimpleNamespace(type=kind)


@pytest.mark.parametrize(
    ("kind", "name", "precision", "share"),
    [
        # 6 operations · 10⁶ weights · 10⁶ tokens a second = 6 · 10¹² a second
        ("cuda", "NVIDIA H100 80GB HBM3", "bf16", 6e12 / 989e12),
        ("cuda", "NVIDIA L40S", "fp16", 6e12 / 362e12),
        ("cuda", "NVIDIA L4", "bf16", 6e12 / 121e12),
        ("cuda", "NVIDIA L4", "fp32", None),
        ("cuda", "Something else", "bf16", None),
        ("cpu", "NVIDIA H100 80GB HBM3", "bf16", None),
    ],
)
def test_utilization_is_the_share_of_the_accelerators_peak(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    name: str,
    precision: Precision,
    share: float | None,
):
    """Known for an accelerator of the table and its 16-bit arithmetic alone."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name if device.type == "cuda" else "none")
    utilization = model_flops_utilization(OnAccelerator(kind), tokens_per_s=1e6, precision=precision)  # type: ignore[arg-type]
    assert utilization == (None if share is None else pytest.approx(share))
