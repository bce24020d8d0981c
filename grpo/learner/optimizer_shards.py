"""Optimizer state of sharded weights: each process writes and reads only its own part.

The files are safetensors of torch.distributed.checkpoint, with the place of each part in their headers. They can be
read by any number of processes, and so can the single file that an update in one process writes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch

from grpo.policy.transformers.sharding import own_part

_FILE_BYTES, _FILES = 16 * 2**20, 16
"""Size of a file, and files of a process from which on they are larger. A process copies one file at a time into memory
when it writes or reads."""


def save_shards(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Write this process's part of each tensor. Every process must call it, with the same names."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter  # takes a second
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=_files(tensors), save_distributed=True)
    save(tensors, storage_writer=writer)


def load_shards(folder: Path, parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Read the tensors of a folder by name. Of a tensor NAME.KEY, a process reads the part that it has of weight NAME.

    Tensors of other names or shapes are read whole. Raises `SafetensorError` if a file is damaged.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    tensors = {}
    for name, stored in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(stored, TensorStorageMetadata)
        parameter = parameters.get(name.rpartition(".")[0])
        if parameter is not None and parameter.shape == stored.size:
            tensors[name] = torch.empty_like(parameter)
        else:
            tensors[name] = torch.empty(stored.size, dtype=stored.properties.dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        load(tensors, storage_reader=reader, no_dist=True)  # each process knows its parts
    return tensors


def _files(tensors: dict[str, torch.Tensor]) -> dict[str, int]:
    """Number of the file of each tensor, from 1. A file takes tensors in order until its parts have their size."""
    parts = {name: own_part(tensor) for name, tensor in tensors.items()}
    full = max(_FILE_BYTES, sum(part.nbytes for part in parts.values()) // _FILES)
    files, number, size = {}, 1, 0
    for name, part in parts.items():
        if size >= full:
            number, size = number + 1, 0
        files[name] = number
        size += part.nbytes
    return files
