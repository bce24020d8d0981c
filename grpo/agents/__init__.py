"""Who speaks: a policy with a system prompt and tools."""
