"""What this process knows of what it makes: code, packages and machine, beside what a run was asked for."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

import grpo
from grpo.config.pipeline import PipelineConfig
from grpo.evaluation.document import Decision
from grpo.registry import Provenance
from tasks.stage import code_digest, package_versions


def provenance(
    config: PipelineConfig,
    *,
    sources: str,
    scenarios: str,
    model: str,
    policies: Iterable[str],
    champion: str = "",
    decision: Decision | None = None,
) -> Provenance:
    """Everything that the result of this config hangs on, as it is here and now."""
    import torch  # whoever only reads the registry needs none

    return Provenance(
        config=config.model_dump(mode="json"),
        seed=config.seed,
        sources=sources,
        scenarios=scenarios,
        model=model,
        code=code_digest(),
        commit=commit(),
        packages=package_versions(),
        machine={"processor": platform.machine(), "threads": str(torch.get_num_threads())},
        policies=tuple(policies),
        champion=champion,
        decision=decision.reason if decision else "",
        checks={check.name: check.value for check in decision.checks} if decision else {},
    )


def commit() -> str | None:
    """Commit of the project's working tree, `+` where tracked files differ from it; None where there is none."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=Path(grpo.__file__).parent, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "HEAD")
    return f"{head}+" if head and git("status", "--porcelain", "--untracked-files=no") else head


def parameters(config: PipelineConfig) -> dict[str, str]:
    """Settings as flat MLflow parameters: `training.learning_rate`."""
    flat: dict[str, str] = {}

    def walk(prefix: str, value: object) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(f"{prefix}.{key}" if prefix else str(key), item)
        else:
            flat[prefix] = str(value)

    walk("", config.model_dump(mode="json"))
    return flat
