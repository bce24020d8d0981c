"""A policy as an MLflow model that answers chats, in an environment with nothing of this project in it."""

from __future__ import annotations

import importlib.metadata
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo.artifacts import user_temp_folder
from grpo.policy.transformers.adapters import merge_adapters
from grpo.policy.transformers.model import TransformersPolicy
from grpo.registry.provenance import PROVENANCE, Provenance
from grpo.storage.locks import scratch_path

_NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "accelerate", "numpy", "pandas", "jinja2")
"""What loading and answering takes beside MLflow, which MLflow adds itself."""


def requirements() -> list[str]:
    """Packages in the versions that run here, by their public names.

    A build for the CPU alone, torch 2.13.0+cpu, is not on the package index under that name: what is asked for is
    2.13.0, which any build of it satisfies.
    """
    return [f"{package}=={importlib.metadata.version(package).partition('+')[0]}" for package in _NEEDED]


def log_chat_model(policy: TransformersPolicy, run_id: str, provenance: Provenance) -> tuple[str, str]:
    """Log the policy with its signature, requirements and provenance; (address, id) of the logged model.

    A process that dies in here leaves files that no version names. The copy that MLflow makes before it hands the
    files over lies in a scratch folder: what a killed process left of it goes with the next registration.
    """
    import mlflow
    import mlflow.transformers

    logging.getLogger("mlflow.transformers").setLevel(logging.ERROR)  # misses the card of a model that no hub has
    with (
        scratch_path(user_temp_folder() / "registering") as scratch,
        _temporary_files_in(scratch),
        mlflow.start_run(run_id),
    ):
        info = mlflow.transformers.log_model(
            transformers_model={"model": merge_adapters(policy.model), "tokenizer": policy.tokenizer},
            name="policy",
            task="llm/v1/chat",
            pip_requirements=requirements(),
            metadata={PROVENANCE: provenance.model_dump(mode="json")},
        )
    return str(info.model_uri), str(info.model_id)


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Let `tempfile` of this process use a folder while the block runs."""
    folder.mkdir()
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
