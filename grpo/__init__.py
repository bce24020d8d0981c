"""Training multi-turn conversational agents with Group Relative Policy Optimization. Knows nothing of Prefect."""
