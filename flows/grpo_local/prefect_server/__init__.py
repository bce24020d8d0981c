"""Prefect's server: its checks of callers, and its services for runs that were lost."""
