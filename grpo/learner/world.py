"""The processes that share an update, and what they tell each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import distributed, nn

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Which of how many processes this one is; alone, everything it knows is all there is to know."""

    rank: int = 0
    size: int = 1

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part: every size-th item."""
        return items[self.rank :: self.size]

    def gather(self, items: Sequence[T]) -> list[T]:
        """The items of all processes, by rank."""
        if self.size == 1:
            return list(items)
        parts: list[Any] = [None] * self.size
        distributed.all_gather_object(parts, list(items))
        return list(chain.from_iterable(parts))

    def any(self, flag: bool) -> bool:
        """Whether it is true of some process."""
        return any(self.gather([flag]))

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up the gradients of all processes in place; a process that had nothing to do adds zeros."""
        if self.size == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([parameter.grad.flatten() for parameter in trained if parameter.grad is not None])
        distributed.all_reduce(flat)
        for parameter, part in zip(trained, torch.split(flat, [p.numel() for p in trained]), strict=True):
            parameter.grad = part.view_as(parameter)
