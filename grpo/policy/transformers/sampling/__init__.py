"""Sampling of turns from a model: continuous batching, prefix cache, filters and masks of logits."""
