"""Inference in this process with transformers models."""

from grpo.policy.transformers.mkl_warmup import warm_up_mkl

warm_up_mkl()
