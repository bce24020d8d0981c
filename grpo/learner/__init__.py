"""Policy updates from scored trajectories: batches, losses, optimizers, checkpoints."""
