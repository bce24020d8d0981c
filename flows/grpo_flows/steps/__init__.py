"""Steps that flows share, below `grpo_flows.pipeline`."""
