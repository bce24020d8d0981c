"""MKL warm-up: the first calls of its vector functions precede every model.

The race itself occurs in about one process of 500 on a busy machine, too rarely for a test.
"""

from __future__ import annotations

import subprocess
import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpo.policy.transformers.mkl_warmup import warm_up_mkl

_WATCH = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode

seen = []

class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket.__name__ not in ("full", "empty", "fill_"):
            seen.append((function.overloadpacket.__name__, args[0].numel(), str(args[0].dtype)))
        return function(*args, **(kwargs or {}))

with Watch():
    import grpo.policy.transformers.model
print(*(f"{name} {size} {dtype}" for name, size, dtype in seen), sep="\\n")
"""


def test_each_vector_function_is_called_on_one_number_when_models_become_loadable() -> None:
    done = subprocess.run([sys.executable, "-c", _WATCH], capture_output=True, text=True, check=True)
    calls = set(done.stdout.splitlines())
    needed = ("cos", "sin", "exp", "log", "sqrt", "tanh", "erf", "log1p", "expm1")  # of attention, losses, activations
    assert {f"{name} 1 torch.{dtype}" for name in needed for dtype in ("float32", "float64")} <= calls
    assert all(call.split()[1] == "1" for call in calls)


def test_every_function_is_called_on_one_half_in_both_precisions() -> None:
    """Twenty functions of the vector library, each once on .5 in float32 and once in float64."""
    called: list[tuple[str, list[float], torch.dtype]] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = function.overloadpacket.__name__
            if name not in ("full", "empty", "fill_"):
                called.append((name, args[0].tolist(), args[0].dtype))
            return function(*args, **(kwargs or {}))

    with Watch():
        warm_up_mkl()
    assert len({name for name, _, _ in called}) == 20
    assert len(called) == len({(name, dtype) for name, _, dtype in called}) == 40
    assert {dtype for _, _, dtype in called} == {torch.float32, torch.float64}
    assert all(numbers == [0.5] for _, numbers, _ in called)
