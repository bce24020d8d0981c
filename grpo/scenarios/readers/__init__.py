"""Readers of source files, one module a format."""
