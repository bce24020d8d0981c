"""Writing of sharded weights, one shard after the other, so that no process holds a whole model.

A checkpoint of all weights has the files and names of the checkpoint that was read. Its headers are therefore copied,
and only the numbers are written again. This does not work for models whose tensors transformers converts when it reads
them, e.g. experts that have separate files names and one tensor in memory. They are gathered, see
`TransformersPolicy.save`.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from transformers import PreTrainedModel

from grpo.policy.model_files import weight_files
from grpo.policy.transformers.sharding import parts

_LENGTH_BYTES = 8
"""A safetensors file begins with the length of its JSON header: a little-endian integer of this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Header of a safetensors file, and the names of its tensors in the order of their bytes."""

    header: bytes
    names: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]


def has_layout_of(model: PreTrainedModel, folder: Path) -> bool:
    """True if the files in `folder` have the model's weights by name and shape, in float32, and no others.

    Weights that are tied to another one are in the files once.
    """
    weights = model.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items() if tensor.dtype == torch.float32}
    stored = {name: shape for file in weight_files(folder) for name, shape in _layout(folder / file).shapes.items()}
    unstored = weights.keys() - stored.keys()
    return stored.items() <= shapes.items() and unstored <= model.all_tied_weights_keys.keys()


def write_weights(model: PreTrainedModel, source: Path, target: Path, *, write: bool) -> None:
    """Write the weights of a model into files as in `source`. Every process must call it.

    With `write=False` a process only contributes its shards.
    """
    weights = model.state_dict()
    for file in weight_files(source):
        layout = _layout(source / file)
        with (target / file).open("wb") if write else nullcontext() as stream:
            if stream is not None:
                stream.write(layout.header)
            for part in chain.from_iterable(parts(weights[name]) for name in layout.names):
                if stream is not None:
                    stream.write(part.cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)


def _layout(file: Path) -> _Layout:
    with file.open("rb") as stream:
        length = stream.read(_LENGTH_BYTES)
        header = stream.read(int.from_bytes(length, "little"))
    tensors = json.loads(header)
    tensors.pop("__metadata__", None)
    return _Layout(
        header=length + header,
        names=tuple(sorted(tensors, key=lambda name: tensors[name]["data_offsets"])),
        shapes={name: tuple(tensor["shape"]) for name, tensor in tensors.items() if tensor["dtype"] == "F32"},
    )
