"""Agents: a policy with a system prompt, tools, memory and hooks."""
