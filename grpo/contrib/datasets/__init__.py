"""Readers of published data sets, one module each."""
