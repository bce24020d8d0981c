"""`python -m grpo_flows.cli`, the same as `grpo`."""

from grpo_flows.cli.app import run

run()
