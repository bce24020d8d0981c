"""Teacher of on-policy distillation: a frozen model, or the policy itself, that reads the policy's own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from grpo.learner.batch import Sample
from grpo.learner.logprobs import TeacherStates, compute_states
from grpo.policy.transformers.adapters import without_adapters
from grpo.policy.transformers.forward.head import language_model_head


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """Model whose distribution the policy learns. It never gets a gradient."""

    model: PreTrainedModel
    with_adapters: bool = False
    """True for the policy as it is now. Otherwise adapters of the model are disabled."""

    def read(self, samples: Sequence[Sample]) -> TeacherStates:
        """Hidden states before the loss tokens of samples, in one pass over the sequences that the teacher reads.

        A sample without a teacher sequence is read as it is. Its divergence must not be used, but processes that share
        sharded weights have to make equal passes.
        """
        with torch.no_grad(), self._adapters():
            states, place = compute_states(self.model, [sample.teacher or sample for sample in samples])
        return TeacherStates(states=states, place=place, head=self._head)

    def _head(self, states: torch.Tensor) -> torch.Tensor:
        with self._adapters():
            return language_model_head(self.model)(states)

    def _adapters(self) -> AbstractContextManager[object]:
        return nullcontext() if self.with_adapters else without_adapters(self.model)


def taught_tokens(samples: Sequence[Sample], *, device: torch.device) -> torch.Tensor:
    """1 for each loss token of a sample that has a teacher sequence, otherwise 0. [loss tokens]"""
    lengths = torch.tensor([int(sample.loss_mask.sum()) for sample in samples])
    taught = torch.tensor([float(sample.teacher is not None) for sample in samples])
    return torch.repeat_interleave(taught, lengths).to(device)
