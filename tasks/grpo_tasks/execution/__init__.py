"""Execution of stages: the cache, retries, executors, stages on other machines, and GPU slots."""
