"""Environments: they play the user, execute the tools, and verify at the end whether the episode was a success."""
