"""Worlds of tools, one a file."""
