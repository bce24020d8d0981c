"""`python -m grpo_cli`, the same as `grpo`."""

from grpo_cli.app import run

run()
