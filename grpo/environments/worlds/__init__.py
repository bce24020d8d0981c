"""Worlds that tools act on, one a file."""
