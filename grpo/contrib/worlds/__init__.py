"""Worlds of tools, one per file."""
