"""`python -m flows.cli`, the same as `grpo`."""

from flows.cli.app import app

app(prog_name="grpo")
