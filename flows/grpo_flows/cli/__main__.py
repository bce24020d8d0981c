"""`python -m grpo_flows.cli`, the same as `grpo`."""

from grpo_flows.cli.app import app

app(prog_name="grpo")
