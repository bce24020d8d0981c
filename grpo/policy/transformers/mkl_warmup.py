"""Makes the first elementwise pass of a process compute what every later one does."""

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
"""What PyTorch's CPU build hands to MKL's vector library."""


def warm_up_mkl() -> None:
    """Call each of MKL's vector functions once, on one number, before threads can call them side by side.

    MKL chooses a function's kernel in its first call. Where several threads make it at once, on a busy machine, one
    of them may compute its share with a kernel of low accuracy, for that one call (PyTorch issue 188792). Cosines of
    the first prompts came out some 1e-6 off, and a run was no longer the run that it repeated.
    """
    for function in _RESOLVED_ON_FIRST_CALL:
        for precision in (torch.float32, torch.float64):
            function(torch.full((1,), 0.5, dtype=precision))
