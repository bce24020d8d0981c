"""Prefect flows, one per file."""

from grpo_local.settings import collect_rarely

collect_rarely()  # also in a process that Prefect starts for a flow run, before it imports PyTorch
