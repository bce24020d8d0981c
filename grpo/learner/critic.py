"""Critic of ppo and a2c: a learned value function, and advantages from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from grpo.algorithms.value import generalized_advantages, value_loss
from grpo.config.training import CriticSettings
from grpo.errors import PolicyError
from grpo.learner.batch import Batch, Sample
from grpo.policy.transformers.forward.passes import hidden_states, microbatches, token_batch

CRITIC = "critic.safetensors"
_EPSILON = 1e-8


class ValueHead(nn.Module):
    """Value of a hidden state, the expected return: two layers, initialized to output 0."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        last = nn.Linear(hidden_size, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.ReLU(), last)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden size] → [tokens]."""
        values: torch.Tensor = self.layers(states.float())[:, 0]
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTargets:
    """Training data of the critic, one row per completion token."""

    states: torch.Tensor  # [loss tokens, hidden size]
    values: torch.Tensor  # [loss tokens], before the fit
    returns: torch.Tensor  # [loss tokens]


class Critic:
    """A value head on the policy's hidden states, with its own optimizer. Its loss does not train the policy."""

    def __init__(self, hidden_size: int, settings: CriticSettings, *, seed: int, device: torch.device) -> None:
        self.settings = settings
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % 2**64)
            self.head = ValueHead(hidden_size).to(device)
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=settings.learning_rate, weight_decay=0.0)

    @torch.no_grad()
    def estimate_advantages(
        self, model: PreTrainedModel, batch: Batch, *, max_tokens: int, scale: bool
    ) -> tuple[Batch, ValueTargets]:
        """Batch with the advantage of each completion token, and the targets of the value loss. γ is per token too.

        If an episode was truncated, the value beyond its end is the value of its last state. If it terminated, it is 0.
        With `scale`, advantages have mean 0 and standard deviation 1 over all tokens.
        """
        samples = batch.samples
        order = {id(sample): index for index, sample in enumerate(samples)}
        states_of: list[tuple[torch.Tensor, torch.Tensor]] = [(torch.empty(0), torch.empty(0))] * len(samples)
        for micro in microbatches(model, samples, max_tokens=max_tokens):
            batched = token_batch(model, micro)
            states = hidden_states(model, batched)
            lengths = [int(sample.loss_mask.sum()) for sample in micro]
            before = torch.split(states.index_select(0, batched.predictors), lengths)
            for sample, tokens, last in zip(micro, before, states.index_select(0, batched.ends), strict=True):
                states_of[order[id(sample)]] = (tokens.float(), last.float())
        advantages, returns, values = [], [], []
        for sample, (tokens, last) in zip(samples, states_of, strict=True):
            assert sample.rewards is not None
            value = self.head(tokens).double().cpu().numpy()
            beyond = float(self.head(last[None])) if sample.truncated else 0.0
            dones = np.zeros(len(value), dtype=np.bool_)
            dones[-1] = True
            advantage = generalized_advantages(
                sample.rewards[sample.loss_mask],
                value,
                dones=dones,
                bootstrap=np.full(len(value), beyond),
                gamma=self.settings.gamma,
                decay=self.settings.gae_lambda,
            )
            advantages.append(advantage)
            returns.append(advantage + value)
            values.append(value)
        if scale:
            everything = np.concatenate(advantages)
            mean, std = everything.mean(), everything.std() + _EPSILON
            advantages = [(advantage - mean) / std for advantage in advantages]
        device = model.device
        updated = batch.with_samples(_with_advantages(*pair) for pair in zip(samples, advantages, strict=True))
        return updated, ValueTargets(
            states=torch.cat([tokens for tokens, _ in states_of]),
            values=torch.from_numpy(np.concatenate(values)).float().to(device),
            returns=torch.from_numpy(np.concatenate(returns)).float().to(device),
        )

    def fit(self, value_targets: ValueTargets) -> list[float]:
        """Fit the head to the returns. The result has the loss before each step, and after the last one."""

        def current_loss() -> torch.Tensor:
            values = self.head(value_targets.states)
            clip = self.settings.value_clip
            return value_loss(values, value_targets.values, value_targets.returns, clip=clip).mean()

        losses = []
        for _ in range(self.settings.epochs):
            loss = current_loss()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            losses.append(float(loss.detach()))
        with torch.no_grad():
            return [*losses, float(current_loss())]

    def save(self, folder: Path) -> None:
        """Write the head and its optimizer into the folder of the policy."""
        tensors = {name: value.contiguous() for name, value in self.head.state_dict().items()}
        for name, parameter in self.head.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"{name}.{key}"] = value.contiguous()
        save_file(tensors, folder / CRITIC)

    def resume(self, folder: Path) -> None:
        """Continue from a checkpoint. If it has no critic, nothing changes.

        Raises `PolicyError` if the critic does not fit this model's width.
        """
        if not (folder / CRITIC).is_file():
            return
        tensors = load_file(folder / CRITIC, device=str(next(self.head.parameters()).device))
        try:
            self.head.load_state_dict({name: tensors[name] for name in self.head.state_dict()})
        except (KeyError, RuntimeError) as error:
            raise PolicyError(f"{folder / CRITIC} does not fit this model: {error}") from error
        for name, parameter in self.head.named_parameters():
            keys = ("step", "exp_avg", "exp_avg_sq")
            self.optimizer.state[parameter] = {key: tensors[f"{name}.{key}"] for key in keys}


def _with_advantages(sample: Sample, advantage: np.ndarray) -> Sample:
    """The sample with the advantages of its completion tokens."""
    tokens = np.zeros(len(sample.token_ids), dtype=np.float32)
    tokens[sample.loss_mask] = advantage
    return replace(sample, advantages=tokens)
