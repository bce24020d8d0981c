"""Learned rewards: a small network over hashed features, and the safety reward on sentence vectors."""
