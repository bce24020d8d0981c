"""Training by TRL: GRPO, DPO and reward models."""
