"""Policies that are transformers models in this process."""

from grpo.policy.transformers.mkl_warmup import warm_up_mkl

warm_up_mkl()
