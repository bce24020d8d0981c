"""Advantages, losses, KL and GAE on arrays."""
