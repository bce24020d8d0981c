"""Language model head: computes the logits of hidden states with the model's own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from grpo.errors import PolicyError


class _Output(BaseModelOutputWithPast):
    """Output of a base model of any class. All attributes except the hidden states are None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _States(nn.Module):
    """Base model that returns given hidden states. Other attributes that the head reads come from `inner`."""

    def __init__(self, states: torch.Tensor, inner: nn.Module) -> None:
        super().__init__()
        self.__dict__.update(_states=states, _inner=inner)  # not registered, because they belong to the model

    def forward(self, *args: Any, **kwargs: Any) -> _Output:
        """Return the given states as if a forward pass had computed them."""
        del args, kwargs
        return _Output(last_hidden_state=self._states)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__dict__["_inner"], name)
        # some heads call a decoder inside the base model, so it is replaced too; a layer with own weights is not
        is_nested = isinstance(value, nn.Module) and not dict(value.named_parameters(recurse=False))
        return _States(self._states, value) if is_nested else value


def base_model(model: PreTrainedModel) -> PreTrainedModel:
    """Module of a causal language model that computes its hidden states.

    Raises `PolicyError` if the base model and the head cannot be separated.
    """
    inner = _with_head(model)
    base: PreTrainedModel = inner._modules[_base_name(inner)]
    return base


def _with_head(model: PreTrainedModel) -> PreTrainedModel:
    """Causal language model with base and head: the model itself, or the one inside a wrapper, e.g. Llama 4's."""
    if isinstance(model._modules.get(model.base_model_prefix), nn.Module):
        return model
    nested = [
        module
        for module in model.children()
        if isinstance(module, PreTrainedModel) and module.get_output_embeddings() is not None
    ]
    return _with_head(nested[0]) if len(nested) == 1 else model


def _base_name(model: PreTrainedModel) -> str:
    if isinstance(model._modules.get(model.base_model_prefix), nn.Module):
        return str(model.base_model_prefix)
    nested = [name for name, module in model._modules.items() if isinstance(module, PreTrainedModel)]
    if len(nested) != 1:
        raise PolicyError(f"{type(model).__name__} is refused, because its language model head cannot be separated")
    return nested[0]


def language_model_head(model: PreTrainedModel) -> Callable[[torch.Tensor], torch.Tensor]:
    """Function from hidden states [tokens, hidden size] to logits [tokens, vocabulary], scales and caps included.

    The function runs the model's own forward pass around a base model that returns the given states. Raises
    `PolicyError` if the model's head cannot be separated from its layers.
    """
    model = _with_head(model)
    name = _base_name(model)

    def head(states: torch.Tensor) -> torch.Tensor:
        shallow = object.__new__(type(model))  # copy.copy would call the constructor of a sharded model
        shallow.__dict__.update(model.__dict__)
        shallow._modules = {**model._modules, name: _States(states[None], base_model(model))}
        # not through hooks, because FSDP's hooks are made for the whole model
        logits: torch.Tensor = type(model).forward(shallow, input_ids=None, inputs_embeds=states[None]).logits
        return logits[0]

    return head
