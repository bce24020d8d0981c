"""Serving of a policy: its engine, its access rules and its log."""
