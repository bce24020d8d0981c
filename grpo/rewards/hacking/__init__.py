"""Reward hacking check: degenerate replies that a reward must not pay for."""
