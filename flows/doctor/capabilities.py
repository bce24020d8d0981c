"""What a config may ask for on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from flows.doctor.installation import imported, installed
from flows.local.checks import CheckResult, State


def capabilities() -> Iterator[CheckResult]:
    """What a config may ask for on this machine."""
    torch = imported("torch")
    gpu = torch is not None and torch.cuda.is_available()
    distributed = torch is not None and torch.distributed.is_available()
    table: tuple[tuple[str, tuple[str, ...], bool, str], ...] = (
        ("rollout.backend: transformers", ("torch", "transformers"), True, ""),
        ("rollout.backend: vllm", ("vllm",), gpu, "vLLM plays on a GPU"),
        ("training.engine: trl", ("trl",), True, ""),
        ("training.lora", ("peft",), True, ""),
        ("training.processes", ("torch",), distributed, "this PyTorch was built without torch.distributed"),
        ("policy.quantization", ("bitsandbytes",), gpu, "weights of few bits need a GPU"),
        ("rollout.runner: dask", ("prefect-dask",), True, ""),
        ("models behind openai+https://", ("openai",), True, ""),
        ("store: s3://", ("s3fs",), True, ""),
    )
    for name, needed, possible, reason in table:
        missing = [package for package in needed if not installed(package)]
        if missing:
            yield CheckResult(
                area="capabilities", name=name, state="absent", found=f"{', '.join(missing)} not installed"
            )
        else:
            state: State = "ok" if possible else "absent"
            yield CheckResult(area="capabilities", name=name, state=state, found="yes" if possible else reason)
