"""Training without dropout, because with dropout the importance ratio would not be 1 before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel


@contextmanager
def without_dropout(*models: PreTrainedModel) -> Iterator[None]:
    """Set the dropout rates of models (in modules, layers and configs) to 0 inside the context."""
    holders: list[Any] = [module for model in models for module in model.modules()]
    holders += {id(c): c for holder in holders if (c := getattr(holder, "config", None)) is not None}.values()
    rates = [(holder, name, rate) for holder in holders for name, rate in _rates(holder)]
    for holder, name, _ in rates:
        setattr(holder, name, 0.0)
    try:
        yield
    finally:
        for holder, name, rate in rates:
            setattr(holder, name, rate)


def _rates(holder: Any) -> list[tuple[str, float]]:
    """Names and values of dropout rates: `p` of PyTorch's modules, `dropout`, `resid_pdrop`, `layerdrop`."""
    is_dropout = isinstance(holder, torch.nn.modules.dropout._DropoutNd)
    return [
        (name, value)
        for name, value in vars(holder).items()
        if ("drop" in name or (is_dropout and name == "p")) and isinstance(value, int | float) and value is not False
    ]
