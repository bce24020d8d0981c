"""Policies that are transformers models in this process."""
