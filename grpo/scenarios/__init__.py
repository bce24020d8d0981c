"""Scenarios: ingestion, validation and the split."""
