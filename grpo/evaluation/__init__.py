"""Evaluation of policies on held-out episodes: metrics, intervals, promotion gates, and the report."""
