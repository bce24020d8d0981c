"""From scored trajectories to the next checkpoint."""
