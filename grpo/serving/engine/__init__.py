"""Versions of a model and the processes that sample their turns."""
