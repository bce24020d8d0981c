"""Rollout: G sampled episodes of each scenario as token-exact trajectories."""
