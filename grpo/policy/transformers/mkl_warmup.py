"""MKL warm-up: the first elementwise pass of a process computes the same values as later ones."""

from __future__ import annotations

import torch

_RESOLVED_ON_FIRST_CALL = (
    torch.acos,
    torch.asin,
    torch.atan,
    torch.cos,
    torch.cosh,
    torch.erf,
    torch.erfc,
    torch.erfinv,
    torch.exp,
    torch.expm1,
    torch.lgamma,
    torch.log,
    torch.log10,
    torch.log1p,
    torch.log2,
    torch.sin,
    torch.sinh,
    torch.sqrt,
    torch.tan,
    torch.tanh,
)
"""Functions that PyTorch's CPU build delegates to MKL's vector library."""


def warm_up_mkl() -> None:
    """Call each of MKL's vector functions once, on one number, before threads call them concurrently.

    MKL selects a function's kernel in its first call. If several threads make that call at once on a busy machine, one
    of them may use a kernel of low accuracy for it (PyTorch issue 188792). Without the warm-up, cosines of the first
    prompts differed by some 1e-6, so that a run was not reproducible.
    """
    for function in _RESOLVED_ON_FIRST_CALL:
        for precision in (torch.float32, torch.float64):
            function(torch.full((1,), 0.5, dtype=precision))
