"""What this process computes with: the project's sources and the packages that numbers depend on."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import subprocess
from pathlib import Path

from grpo.rewards.rubrics import RUBRICS

NUMERIC_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "trl", "peft", "accelerate")


@functools.cache
def source_digest() -> str:
    """Digest of the `grpo` sources and of the rubrics."""
    digest = hashlib.sha256()
    for root in (Path(__file__).parent, RUBRICS):
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".j2", ".yaml"):
                digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def package_versions() -> dict[str, str]:
    """Versions of the packages that numbers depend on."""
    return {package: importlib.metadata.version(package) for package in NUMERIC_PACKAGES}


@functools.cache
def code_digest() -> str:
    """Digest of the sources and of the packages that numbers depend on: a change there recomputes all stages."""
    digest = hashlib.sha256(source_digest().encode())
    for package, version in package_versions().items():
        digest.update(f"{package}=={version}".encode())
    return digest.hexdigest()[:16]


def commit() -> str | None:
    """Commit of the project's working tree, `+` where tracked files differ from it; None where there is none."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "HEAD")
    return f"{head}+" if head and git("status", "--porcelain", "--untracked-files=no") else head
