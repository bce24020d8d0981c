"""Environments: what an agent acts in, its users and its worlds of tools."""
