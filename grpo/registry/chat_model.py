"""A policy as an MLflow chat model that loads in an environment without this project."""

from __future__ import annotations

import importlib.metadata
import logging
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo.policy.transformers.adapters import merge_adapters
from grpo.policy.transformers.model import TransformersPolicy
from grpo.registry.logged_models import HOST, NAME
from grpo.registry.provenance import PROVENANCE, Provenance
from grpo.renderers.chat_template import rendering_tokenizer
from grpo.storage.fetched import user_temp_folder
from grpo.storage.files import storage_errors
from grpo.storage.locks import scratch_path

_NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "accelerate", "numpy", "pandas", "jinja2")
"""Packages for loading and generating. MLflow is not listed, because MLflow adds itself."""


def requirements() -> list[str]:
    """Requirements in the installed versions, without local version labels.

    The package index has no torch 2.13.0+cpu, and any build satisfies 2.13.0.
    """
    return [f"{package}=={importlib.metadata.version(package).partition('+')[0]}" for package in _NEEDED]


def log_chat_model(policy: TransformersPolicy, run_id: str, provenance: Provenance) -> tuple[str, str]:
    """Log the policy with its signature, requirements and provenance. Returns (URI, id) of the logged model.

    If the process is killed here, it leaves files that no version references. The next registration of the run removes
    them, and also the scratch folder with MLflow's intermediate copy. Raises `StorageError` if the disk is full.
    """
    import mlflow
    import mlflow.transformers

    logging.getLogger("mlflow.transformers").setLevel(logging.ERROR)  # warns if a model has no hub card
    logging.getLogger("transformers.pipelines.base").setLevel(logging.CRITICAL)  # else it lists all classes
    with (
        scratch_path(user_temp_folder() / "registering") as scratch,
        storage_errors(str(scratch)),
        _temporary_files_in(scratch),
        mlflow.start_run(run_id),
    ):
        info = mlflow.transformers.log_model(
            transformers_model={
                "model": merge_adapters(policy.model),
                "tokenizer": rendering_tokenizer(policy.tokenizer),
            },
            name=NAME,
            tags={HOST: socket.gethostname()},
            task="llm/v1/chat",
            pip_requirements=requirements(),
            metadata={PROVENANCE: provenance.model_dump(mode="json")},
        )
    return str(info.model_uri), str(info.model_id)


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Direct `tempfile` of this process to a folder while the block runs."""
    folder.mkdir()
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
