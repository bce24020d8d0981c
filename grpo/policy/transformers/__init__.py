"""Policies that are transformers models in this process."""

from grpo.policy.transformers.kernels import settle

settle()
