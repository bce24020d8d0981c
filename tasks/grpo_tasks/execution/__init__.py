"""How stages run: the cache, retries, executors, stages on other machines, and GPU slots."""
